"""The app contains all routes of routes/."""

from __future__ import annotations

import asyncio
from importlib import import_module
from pkgutil import iter_modules

import httpx

from probe_agent.server import routes
from probe_agent.server.app import create_app
from probe_agent.server.command_server import Commands, Output
from probe_agent.targets import TargetDirectory


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


class Large(Commands):
    """Its commands answer as for thousands of ranks."""

    async def run(self, arguments: tuple[str, ...], timeout_s: float) -> Output:
        return Output(0, b'{"rows": [%s]}' % b", ".join([b'{"rank": 1}'] * 10_000), b"")


def test_an_answer_about_a_large_job_is_compressed_for_whoever_can_read_it() -> None:
    async def sizes() -> list[int]:
        app = create_app(TargetDirectory(()))
        app.state.commands, app.state.endpoint = Large(), "unix:/nowhere"
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8080") as http:
            answers = [
                await http.get("/v1/job/ranks", headers={"Accept-Encoding": coding}) for coding in ("gzip", "identity")
            ]
        assert answers[0].json() == answers[1].json()
        return [answer.num_bytes_downloaded for answer in answers]

    compressed, plain = asyncio.run(sizes())

    assert compressed * 10 < plain
