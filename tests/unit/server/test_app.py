"""The app is put together from the files in api/."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules

from probe_agent.server import api, create_app


def test_every_endpoint_file_is_part_of_the_app() -> None:
    described = create_app().openapi()["paths"]

    for info in iter_modules(api.__path__, api.__name__ + "."):
        routes = [route.path for route in import_module(info.name).router.routes]
        assert routes
        assert set(routes) <= set(described)


def test_the_file_of_an_endpoint_is_found_by_its_path() -> None:
    for info in iter_modules(api.__path__):
        for route in import_module(f"{api.__name__}.{info.name}").router.routes:
            assert route.path.split("/")[1:3] == ["v1", info.name.split("_")[0]]


def test_an_app_in_the_callers_own_process_loads_what_is_asked_for() -> None:
    code = (
        "import asyncio, httpx, sys\nfrom probe_agent.server import create_app\nasync def ask():\n"
        " transport = httpx.ASGITransport(create_app())\n"
        " async with httpx.AsyncClient(transport=transport, base_url='http://localhost') as client:\n"
        "  print([(await client.get(path)).status_code for path in ('/v1/health', '/v1/nothing', '/v1/health')])\n"
        "asyncio.run(ask())\n"
        "print([name for name in sys.modules if name.startswith('probe_agent.server.api.')])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == ["[200, 404, 200]", "['probe_agent.server.api.health']"]


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
