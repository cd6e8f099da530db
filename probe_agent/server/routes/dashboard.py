"""The dashboard: its files, and how a browser gets in.

The files tell nothing of a target, so they are open. A code, which only somebody with a token or on the unix socket
gets, is exchanged once for a cookie and a key.
"""

from __future__ import annotations

import socket
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request, Response

import probe_agent
from probe_agent.errors import BadRequest, Forbidden
from probe_agent.server.access.roles import Access, Caller
from probe_agent.server.access.sessions import CODE_S, COOKIE, SESSION_S
from probe_agent.server.dashboard.files import page_file
from probe_agent.wire import CodeRequest, PageCode, PageSession, SessionRequest

__all__ = ["open", "read"]

open = APIRouter()
read = APIRouter()


@open.get("/", response_class=Response)
def page(request: Request) -> Response:
    """The dashboard."""
    return page_file("index.html", request.headers)


@open.get("/dashboard/{name}", response_class=Response)
def file(request: Request, name: Annotated[str, Path(description="a file of the bundle")]) -> Response:
    """A script or style sheet of the dashboard."""
    return page_file(name, request.headers)


@open.post("/v1/dashboard/session")
def enter(request: Request, response: Response, wanted: SessionRequest) -> PageSession:
    """Exchange a code for a session: a cookie, and a key that every question needs as well."""
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise BadRequest("only the dashboard's own page may open a session", "open the link again: probe … dashboard")
    access: Access = request.app.state.access
    cookie, key, role = access.sessions.open(wanted.code, request.headers.get("host", ""))
    response.set_cookie(
        COOKIE,
        cookie,
        max_age=int(SESSION_S),
        path="/v1",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    response.headers["Cache-Control"] = "no-store"
    return _session(role, key)


@read.get("/v1/dashboard/session")
def current(request: Request) -> PageSession:
    """Return what the caller may do."""
    caller: Caller = request.state.caller
    return _session(caller.role)


@read.delete("/v1/dashboard/session")
def leave(request: Request, response: Response) -> PageSession:
    """End the session of the caller."""
    caller: Caller = request.state.caller
    access: Access = request.app.state.access
    access.sessions.end(dict(request.scope["headers"]))
    response.delete_cookie(COOKIE, path="/v1", httponly=True, samesite="strict")
    return _session(caller.role)


@read.post("/v1/dashboard/code")
async def code(request: Request, wanted: CodeRequest) -> PageCode:
    """Return a code that opens one session. A server that is on its unix socket alone opens a loopback port for as
    long as the dashboard is in use."""
    caller: Caller = request.state.caller
    if caller.has_session:
        raise Forbidden("a session of the dashboard cannot open another one", "use: probe … dashboard")
    if wanted.role not in ("read", "control"):
        raise BadRequest(f"invalid role {wanted.role!r}", "use read or control")
    role: Literal["read", "control"] = "control" if caller.role == wanted.role == "control" else "read"
    access: Access = request.app.state.access
    offered = access.sessions.offer(role)  # first: a port that nobody uses closes
    address = await request.app.state.dashboard_address()
    return PageCode(offered, CODE_S, role, address, socket.gethostname())


def _session(role: str, key: str = "") -> PageSession:
    return PageSession(role, socket.gethostname(), probe_agent.__version__, key)
