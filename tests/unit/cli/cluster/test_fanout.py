"""Questions to several endpoints, one after the other, in one time for all of them."""

from __future__ import annotations

import asyncio
from typing import Any

from probe_cli.cluster.fanout import Conversation, Member
from probe_cli.endpoint import LocalProcess


def test_who_does_not_answer_in_time_is_told_the_time_for_all_questions() -> None:
    unused: Any = None
    slow = Member(LocalProcess(1), unused)

    async def answer(member: Member) -> int:
        await asyncio.sleep(0.2)
        return 1

    async def converse() -> int:
        conversation = Conversation([slow], (), 5.0, total_s=0.3)
        return len(await conversation.ask(answer)) + len(await conversation.ask(answer))

    answered = asyncio.run(converse())

    assert answered < 2
    assert slow.error is not None
    assert "did not answer within 0.3 s" in slow.error.message
