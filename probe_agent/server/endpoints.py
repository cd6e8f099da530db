"""The endpoints of `api/`, each imported when it is first asked for: building all takes 0.15 s of a short command.

The file of an endpoint begins with the first word of its path: `/v1/eval/hold` is in one of `api/eval*.py`. The OpenAPI
description asks for all of them.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from . import api
from .access import Role

__all__ = ["Endpoints"]


class Endpoints:
    """Adds to `routes`, those of the app, what is asked for."""

    def __init__(self, routes: list[BaseRoute]) -> None:
        self._routes = routes
        self._roles: list[tuple[BaseRoute, Role]] = []
        self._waiting = sorted(info.name for info in iter_modules(api.__path__))

    def load(self, path: str) -> None:
        """Those that `path` may mean."""
        word = path.removeprefix("/v1/").partition("/")[0]
        self._load([name for name in self._waiting if name.partition("_")[0] == word])

    def load_all(self) -> None:
        """Every endpoint there is."""
        self._load(list(self._waiting))

    def role_needed(self, scope: Scope) -> Role:
        """The role that the endpoint meant wants; what is no endpoint of ours may be read by whoever got in."""
        self.load(scope["path"])
        return next((role for route, role in self._roles if route.matches(scope)[0] is Match.FULL), "read")

    def _load(self, names: list[str]) -> None:
        for name in names:
            endpoint = import_module(f"{api.__name__}.{name}")
            role: Role = getattr(endpoint, "ROLE", "control")
            for route in endpoint.router.routes:
                route.openapi_extra = {"x-role": role, "security": [{"token": []}]}
                self._roles.append((route, role))
                # Not include_router: it builds every route once more at the first request, 50 ms of a short CLI run.
                self._routes.append(route)
            self._waiting.remove(name)
