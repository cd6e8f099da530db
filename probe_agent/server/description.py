"""Description of the HTTP API, which `/openapi.json` and the reference show.

Made when it is first asked for. What FastAPI would do for it at the start, the shape of errors for every endpoint and
the sentences below the fields of the wire classes, would take 0.2 s of each start of a server.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import is_dataclass
from typing import Any

from fastapi import FastAPI
from pydantic import TypeAdapter

from probe_agent import wire
from probe_agent.wire import ProblemAnswer
from probe_agent.wire._documented import DOCUMENTED

__all__ = ["describe_with"]

_REF = "#/components/schemas/{model}"
_PROBLEMS = {"4XX": "Client Error", "5XX": "Server Error"}


def describe_with(app: FastAPI) -> None:
    """Add the token, the errors and the meaning of every field to the description of `app`."""
    describe = app.openapi

    def described() -> dict[str, Any]:
        description = describe()
        components = description["components"]
        if "securitySchemes" not in components:
            components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            _add_problems(description)
            _add_sentences(components["schemas"])
            components["schemas"] = dict(sorted(components["schemas"].items()))
        return description

    app.openapi = described  # type: ignore[method-assign]


def _add_problems(description: dict[str, Any]) -> None:
    content = {"application/json": {"schema": {"$ref": _REF.format(model=ProblemAnswer.__name__)}}}
    for path in description["paths"].values():
        for endpoint in path.values():
            endpoint["responses"].pop("422", None)  # FastAPI's own shape, which no answer of ours has
            for code, meaning in _PROBLEMS.items():
                endpoint["responses"][code] = {"description": meaning, "content": content}


def _add_sentences(schemas: dict[str, Any]) -> None:
    DOCUMENTED["use_attribute_docstrings"] = True
    classes = [one for name in wire.__all__ if is_dataclass(one := getattr(wire, name)) and isinstance(one, type)]
    ours = _schemas_of(classes)
    schemas.setdefault(ProblemAnswer.__name__, ours[ProblemAnswer.__name__])
    schemas.setdefault("Problem", ours["Problem"])
    for shape in ("HTTPValidationError", "ValidationError"):
        schemas.pop(shape, None)
    for name in schemas.keys() & ours.keys():
        for field, meaning in ours[name].get("properties", {}).items():
            if "description" in meaning and field in schemas[name].get("properties", {}):
                schemas[name]["properties"][field]["description"] = meaning["description"]


def _schemas_of(classes: Iterable[type]) -> dict[str, Any]:
    adapters: list[Any] = [(one.__name__, "validation", TypeAdapter(one)) for one in classes]
    return dict(TypeAdapter.json_schemas(adapters, ref_template=_REF)[1]["$defs"])
