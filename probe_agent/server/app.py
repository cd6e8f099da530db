"""The web app of the host server: the endpoints of `routes/` behind the guard, one shape for every error.

No cross-origin access is allowed to anyone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

import probe_agent
from probe_agent.sql.query_engine import QueryEngine
from probe_agent.sql.tables.gpu import sample_host
from probe_agent.sql.tables.host_history import sample_host_counters
from probe_agent.targets import TargetDirectory, watch_deaths
from probe_agent.tokens import Role

from . import routes
from .access.guard import Guard
from .access.roles import Access, OwnProcess
from .command_server import Commands
from .description import describe_with
from .problem import handle_problems

__all__ = ["create_app"]


class _CompressionOfJobs(GZipMiddleware):
    """Compresses what a browser is told about a whole job: of thousands of ranks it is megabytes, again and again."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_of_job = scope["type"] == "http" and scope["path"].startswith("/v1/job/")
        await (super().__call__ if is_of_job else self.app)(scope, receive, send)


def create_app(
    directory: TargetDirectory | None = None,
    *,
    access: Access | None = None,
    engine: QueryEngine | None = None,
) -> FastAPI:
    """Return the app over the targets in `directory`, by default those of this host. Without `access` it admits every
    caller: that is for tests. Apps that share an `engine` share its query workers."""
    engine = engine or QueryEngine()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        engine.start()
        try:
            with sample_host(), sample_host_counters(), watch_deaths(app.state.directory):
                yield
        finally:
            app.state.commands.close()
            engine.close()

    app = FastAPI(
        title="Probe",
        version=probe_agent.__version__,
        description=(
            "Answers about the training processes of one host. `rank` or `pid` picks one of them; neither is needed"
            " where there is one. Every error has the shape"
            ' `{"error": {"message": "…", "hint": "…", "kind": "…"}}`. Over TCP a token is required in the header'
            " `Authorization: Bearer TOKEN`; the read token opens only the endpoints whose `x-role` is `read`."
        ),
        lifespan=lifespan,
    )
    app.state.directory = directory or TargetDirectory()
    app.state.engine = engine
    app.state.access = access = access or OwnProcess()
    app.state.commands = Commands()
    app.state.leave = lambda: None  # what a server that lingers does once it has no target any more
    handle_problems(app)
    roles = _add_routes(app)
    describe_with(app)
    app.add_middleware(_CompressionOfJobs, minimum_size=16 << 10, compresslevel=1)
    app.add_middleware(Guard, access=access, roles=roles)
    return app


def _add_routes(app: FastAPI) -> list[tuple[BaseRoute, Role]]:
    """Add every endpoint to `app` and return each with the role it needs."""
    routers: list[tuple[APIRouter, Role]] = [*((router, "open") for router in routes.OPEN)]
    routers += [(router, "read") for router in routes.READ]
    routers += [(router, "control") for router in routes.CONTROL]
    added: list[tuple[BaseRoute, Role]] = []
    for router, role in routers:
        for route in router.routes:
            assert isinstance(route, APIRoute)
            route.openapi_extra = {"x-role": role, "security": [] if role == "open" else [{"token": []}]}
            # Not include_router: it builds every route a second time, 50 ms of the server's start.
            app.router.routes.append(route)
            added.append((route, role))
    return added
