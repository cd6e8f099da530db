"""The app contains all routes of routes/."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from probe_agent.server import routes
from probe_agent.server.app import create_app


def test_every_router_is_part_of_the_app_under_the_role_of_its_name() -> None:
    described = create_app().openapi()["paths"]

    for info in iter_modules(routes.__path__, routes.__name__ + "."):
        topic = import_module(info.name)
        found = {name: getattr(topic, name) for name in topic.__all__}
        assert found
        for role, router in found.items():
            assert router.routes
            for route in router.routes:
                endpoint = described[route.path][next(iter(route.methods)).lower()]
                assert endpoint["x-role"] == role, route.path


def test_every_endpoint_and_every_field_has_a_meaning() -> None:
    described = create_app().openapi()

    for methods in described["paths"].values():
        for endpoint in methods.values():
            assert endpoint["description"]
            assert all(parameter["description"] for parameter in endpoint.get("parameters", ()))
    for name, schema in described["components"]["schemas"].items():
        for field, meaning in schema["properties"].items():
            assert "description" in meaning or "$ref" in meaning or "Validation" in name, (name, field)
