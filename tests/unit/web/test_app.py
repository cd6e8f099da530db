"""The app is put together from the files in api/."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from probe_agent.web import api, create_app


def test_every_endpoint_file_is_part_of_the_app() -> None:
    described = create_app().openapi()["paths"]

    for info in iter_modules(api.__path__, api.__name__ + "."):
        routes = [route.path for route in import_module(info.name).router.routes]
        assert routes
        assert set(routes) <= set(described)


def test_every_endpoint_file_says_which_role_it_wants() -> None:
    for info in iter_modules(api.__path__, api.__name__ + "."):
        assert getattr(import_module(info.name), "ROLE", None) in ("read", "control"), info.name


def test_every_endpoint_and_every_field_has_a_meaning() -> None:
    described = create_app().openapi()

    for methods in described["paths"].values():
        for endpoint in methods.values():
            assert endpoint["description"]
            assert all(parameter["description"] for parameter in endpoint.get("parameters", ()))
    for name, schema in described["components"]["schemas"].items():
        for field, meaning in schema["properties"].items():
            assert "description" in meaning or "$ref" in meaning or "Validation" in name, (name, field)
