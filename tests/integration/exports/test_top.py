"""The screen of `top`, driven by Textual's pilot over real rings, and its lines in a pipe."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from support.commands import environment
from support.recorded_job import NUM_RANKS, RecordedJob
from support.targets import target
from support.waiting import until
from textual.pilot import Pilot

from probe_cli.cluster.ranks.discover import endpoints_of
from probe_cli.session import Session
from probe_cli.top.app import FindingsScreen, Ranks, TopApp
from probe_cli.top.detail import DetailScreen
from probe_cli.top.look import Watcher

from .conftest import Ask

Drive = Callable[[TopApp, "Pilot[int]"], Awaitable[None]]


def drive(endpoints: list[str], size: tuple[int, int], keys: Drive, interval_s: float = 0.5) -> int | None:
    """Open the screen, do what `keys` does once ranks are seen, and return the exit code."""
    named = tuple(endpoint for text in endpoints for endpoint in endpoints_of(text))

    async def run() -> int | None:
        app = TopApp(Watcher(Session(named), 5.0), interval_s)
        async with app.run_test(size=size) as pilot:
            await seen(pilot, lambda: app.num_looks > 0)
            await keys(app, pilot)
        return app.return_value

    return asyncio.run(run())


async def seen(pilot: Pilot[int], condition: Callable[[], object]) -> None:
    for _ in range(600):
        if condition():
            return
        await pilot.pause(0.05)
    raise AssertionError("not within 30 s")


def text_of(app: TopApp, selector: str) -> str:
    return str(app.screen.query_one(selector).render())


def cells(app: TopApp) -> list[list[str]]:
    table = app.query_one(Ranks)
    return [[str(cell) for cell in table.get_row_at(at)] for at in range(table.row_count)]


@pytest.mark.long
def test_the_screen_shows_every_rank_and_what_was_found(job: RecordedJob) -> None:
    async def keys(app: TopApp, pilot: Pilot[int]) -> None:
        assert [row[0] for row in cells(app)] == [str(rank) for rank in range(NUM_RANKS)]
        await seen(pilot, lambda: "no step for" in text_of(app, "#sentence"))  # they were recorded long ago
        assert any("█" in cell or "▁" in cell for cell in cells(app)[0])
        assert "DFFFBBBBO·" in cells(app)[0]
        await seen(pilot, lambda: app.diagnosis is not None)
        await pilot.press("f")
        await seen(pilot, lambda: isinstance(app.screen, FindingsScreen))
        assert "not judged" in text_of(app, "#all")
        await pilot.press("escape", "q")

    assert drive(list(job.addresses), (80, 24), keys) == 0


def test_keys_sort_pause_and_open_a_rank(job: RecordedJob) -> None:
    async def keys(app: TopApp, pilot: Pilot[int]) -> None:
        await seen(pilot, lambda: "no step for" in text_of(app, "#sentence"))
        await pilot.press("s", "s", "s")
        assert app.sort == "least wait"
        assert cells(app)[0][0] == str(NUM_RANKS - 1)  # the rank that the others wait for
        await pilot.press("space")
        await seen(pilot, lambda: not app.is_looking)
        looks = app.num_looks
        await pilot.pause(1.2)
        assert app.num_looks == looks
        assert "paused" in text_of(app, "#about")
        await pilot.press("up", "up", "up", "enter")  # the cursor has stayed on rank 0
        await seen(pilot, lambda: isinstance(app.screen, DetailScreen) and app.screen.detail is not None)
        assert f"rank {NUM_RANKS - 1} of {NUM_RANKS}" in text_of(app, "#who")
        assert "backward" in text_of(app, "#phases")
        assert "40 %" in text_of(app, "#phases")
        assert "Net.b forward" in text_of(app, "#modules")
        assert "no recorder listens" in text_of(app, "#frames")
        await pilot.press("escape", "space")
        await seen(pilot, lambda: not isinstance(app.screen, DetailScreen))
        await seen(pilot, lambda: app.num_looks > looks)

    drive(list(job.addresses), (140, 30), keys)


def test_rows_fit_the_terminal(job: RecordedJob) -> None:
    async def keys(app: TopApp, pilot: Pilot[int]) -> None:
        for size in ((80, 24), (140, 40), (250, 60), (40, 10)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            table = app.query_one(Ranks)
            assert table.row_count == NUM_RANKS
            assert size[0] < 80 or table.virtual_size.width <= size[0]

    drive(list(job.addresses), (80, 24), keys)


def test_a_pipe_gets_lines(job: RecordedJob, ask: Ask) -> None:
    done = ask(*job.named, "top", "--count", "2", "-n", "0.5")

    lines = done.out.splitlines()
    assert done.code == 0, done.err
    assert len(lines) == 2 * (1 + NUM_RANKS)
    assert "no step for" in lines[0]
    assert lines[1].startswith("rank 0  step 39  100 ms each")


def test_nothing_to_look_at_is_an_error(ask: Ask) -> None:
    done = ask("-t", "127.0.0.1:1", "top", "--count", "1")

    assert done.code == 4
    assert "127.0.0.1:1" in done.err


@pytest.fixture
def training(tmp_path: Path) -> Iterator[int]:
    command = [sys.executable, *target("ranks_job.py", tmp_path)]
    environ = environment(RANK="0", WORLD_SIZE="1", RANKS_MEET=f"file://{tmp_path}/store")
    with subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL) as process:
        until(lambda: "libtorch" in Path(f"/proc/{process.pid}/maps").read_text(), process=process)
        yield process.pid
        process.kill()


@pytest.mark.long
@pytest.mark.torch
def test_a_living_job_steps_and_shows_its_line(training: int) -> None:
    async def keys(app: TopApp, pilot: Pilot[int]) -> None:
        await seen(pilot, lambda: "stepping" in text_of(app, "#sentence"))
        first = app.look.ranks[0].step if app.look is not None else None
        await seen(pilot, lambda: app.look is not None and app.look.ranks[0].step != first)
        await seen(pilot, lambda: "ranks_job.py:" in " ".join(cells(app)[0]))
        await pilot.press("enter")
        await seen(pilot, lambda: isinstance(app.screen, DetailScreen) and app.screen.detail is not None)
        assert "ranks_job.py" in text_of(app, "#frames")

    drive([str(training)], (120, 30), keys)
