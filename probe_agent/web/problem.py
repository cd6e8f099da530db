"""Every failure as the one shape that clients know: message, hint, kind."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from probe_agent.errors import BadRequest, NoAnswer, ProbeError
from probe_agent.wire import Problem, ProblemAnswer

__all__ = ["PROBLEMS", "handle_problems", "problem_response"]

#: What every router of `api/` declares, so that the API's description has the shape of errors.
PROBLEMS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ProblemAnswer}, "5XX": {"model": ProblemAnswer}}
_log = logging.getLogger(__name__)


def handle_problems(app: FastAPI) -> None:
    """Answer all exceptions of `app` in our shape."""
    app.add_exception_handler(ProbeError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(ConnectionResetError, _gone)
    app.add_exception_handler(Exception, _unexpected)


def problem_response(error: ProbeError, status: int | None = None) -> JSONResponse:
    """The answer that says `error`."""
    problem = ProblemAnswer(Problem(error.message, error.hint, type(error).__name__))
    return JSONResponse(asdict(problem), status or error.http_status)


async def _ours(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ProbeError)
    return problem_response(error)


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    said = [f"{'.'.join(str(part) for part in entry['loc'])}: {entry['msg']}" for entry in error.errors()]
    return problem_response(BadRequest("the request is not understood: " + "; ".join(said), "see /docs"))


async def _http(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return problem_response(BadRequest(str(error.detail), "see /docs for what can be asked"), error.status_code)


async def _gone(_: Request, error: Exception) -> JSONResponse:
    return problem_response(NoAnswer(f"the client has gone: {error}"))


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    message = f"the server failed: {type(error).__name__}: {error}"
    return problem_response(ProbeError(message, "this is a fault of Probe: please report it with the server's output"))
