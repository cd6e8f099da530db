"""Every failure as the one shape that clients know: message, hint, kind."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from probe_agent.errors import BadRequest, NoAnswer, ProbeError
from probe_agent.wire import Problem, ProblemAnswer

__all__ = ["handle_problems", "problem_response"]

_log = logging.getLogger(__name__)


def handle_problems(app: FastAPI) -> None:
    """Answer all exceptions of `app` in our shape."""
    app.add_exception_handler(ProbeError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(ConnectionResetError, _gone)
    app.add_exception_handler(Exception, _unexpected)


def problem_response(error: ProbeError, status: int | None = None) -> Response:
    """The answer that says `error`."""
    problem = ProblemAnswer(Problem(error.message, error.hint, type(error).__name__))
    # It may repeat what was sent, and JSON can carry half of a surrogate pair, which UTF-8 cannot.
    body = json.dumps(asdict(problem), ensure_ascii=False).encode("utf-8", "replace")
    return Response(body, status or error.http_status, media_type="application/json")


async def _ours(_: Request, error: Exception) -> Response:
    assert isinstance(error, ProbeError)
    return problem_response(error)


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    said = [f"{'.'.join(str(part) for part in entry['loc'])}: {entry['msg']}" for entry in error.errors()]
    return problem_response(BadRequest("the request is not understood: " + "; ".join(said), "see /docs"))


async def _http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return problem_response(BadRequest(str(error.detail), "see /docs for what can be asked"), error.status_code)


async def _gone(_: Request, error: Exception) -> Response:
    return problem_response(NoAnswer(f"the client has hung up: {error}", "repeat the request"))


async def _unexpected(request: Request, error: Exception) -> Response:
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    message = f"the server failed: {type(error).__name__}: {error}"
    return problem_response(ProbeError(message, "this is a fault of Probe: please report it with the server's output"))
