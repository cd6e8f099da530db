"""Shows a host server our token, and looks for it once more where the server wants one that we did not have.

A server makes the token when it starts for the first time, and connections to it queue up before that: whoever asks at
that moment has read no token yet. Behind the door to httpx (connect.py).
"""

from __future__ import annotations

from collections.abc import Generator

import httpx

from .token import authorization

__all__ = ["TokenAuth"]


class TokenAuth(httpx.Auth):
    """Our token, for any host server."""

    def __init__(self) -> None:
        self._headers = authorization()

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.headers.update(self._headers)
        response = yield request
        if response.status_code == 401 and not self._headers and (found := authorization()):
            self._headers = found
            request.headers.update(found)
            yield request
