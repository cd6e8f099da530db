"""Commands that the host server runs for the dashboard wait for others of their own kind alone."""

from __future__ import annotations

import asyncio

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
