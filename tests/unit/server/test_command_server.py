"""Commands that the host server runs for the dashboard wait for others of their own kind alone."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path

import pytest

from probe_agent.server.command_server import MAX_AT_ONCE, Commands, Output


class Held(Commands):
    """Verdicts take until they are let go; all else is answered at once."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()
        self.running = 0

    async def run(self, arguments: tuple[str, ...], timeout_s: float) -> Output:
        if arguments[0] == "compare":
            self.running += 1
            await self.go_on.wait()
        return Output(0, b"{}", b"")


def test_ranks_are_listed_while_verdicts_take_all_their_places() -> None:
    async def ask() -> None:
        commands = Held()
        verdicts = [
            asyncio.ensure_future(commands.shared(("compare", str(number)), 60.0, 10.0, is_verdict=True))
            for number in range(MAX_AT_ONCE + 1)
        ]
        answer = await asyncio.wait_for(commands.shared(("ranks",), 30.0, 2.0), 10.0)
        assert answer.exit_code == 0
        assert commands.running == MAX_AT_ONCE
        assert not any(verdict.done() for verdict in verdicts)
        commands.go_on.set()
        assert [verdict.exit_code for verdict in await asyncio.gather(*verdicts)] == [0] * len(verdicts)

    asyncio.run(ask())


def test_two_first_questions_start_one_process() -> None:
    async def ask() -> None:
        commands = Commands()
        try:
            outputs = await asyncio.gather(*(commands.run(("--version",), 30.0) for _ in range(4)))
        finally:
            commands.close()
        assert [output.exit_code for output in outputs] == [0] * 4, outputs

    asyncio.run(ask())


async def write_for_ever(descriptor: int) -> None:
    while True:
        os.write(descriptor, b"#")
        await asyncio.sleep(0.01)


def test_a_command_that_nobody_waits_for_any_more_is_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    said = tmp_path / "said"
    os.mkfifo(said)
    # It waits in the middle of its arguments: a host list is a file that nobody writes.
    arguments = ("-t", f"@{said}", "ranks")

    async def ask() -> None:
        commands = Commands()
        try:
            first, second = (asyncio.ensure_future(commands.shared(arguments, 30.0, 1.0)) for _ in range(2))
            writer = await asyncio.to_thread(os.open, said, os.O_WRONLY)  # it has begun to read
            first.cancel()
            await asyncio.wait({first})
            os.write(writer, b"#")
            assert not second.done()
            second.cancel()
            with pytest.raises(BrokenPipeError):  # nobody reads any more: it has ended
                await write_for_ever(writer)
        finally:
            commands.close()

    asyncio.run(asyncio.wait_for(ask(), 30))

    gc.collect()  # a future whose exception nobody has retrieved says so when it goes
    assert not caplog.records
