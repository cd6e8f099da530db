"""The hunt on every rank, and the rank and module that made the first value that is not finite, in one sentence.

Runs in the CLI on its event loop. Once a rank has found something the others get a moment: gradients spread it to them
at the end of the same step, and theirs is then not the first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from probe_agent.errors import NoAnswer
from probe_agent.wire import HuntLine, HuntRequest, Origin
from probe_cli.client import Client
from probe_cli.text import num_ranks

from .tensors import Loss, ask_loss

__all__ = ["Hunted", "blind_spots", "culprit", "hunt", "sentence"]

#: Time that the other ranks get.
OTHERS_S = 3.0
#: Findings of ranks whose steps have no common numbers belong together within this time.
TOGETHER_S = 2.0
#: How early in a step each kind comes.
_ORDER = {"data": 0, "input": 1, "forward": 2, "loss": 3, "backward": 4, "gradient": 5}


@dataclass(frozen=True)
class Hunted:
    """What one rank has answered."""

    line: HuntLine
    loss: Loss | None

    @property
    def origin(self) -> Origin | None:
        return self.line.origin


def hunt(request: HuntRequest, watches: Callable[[str], None]) -> Callable[[Client], Awaitable[Hunted]]:
    """The question to one rank; `watches` is told its endpoint when the first watched step begins."""
    found = asyncio.Event()

    async def follow(client: Client) -> HuntLine:
        async with contextlib.aclosing(client.lines(HuntLine, "/v1/nan/hunt", request)) as lines:  # type: ignore[type-var]  # a generator, as its type does not say
            async for line in lines:
                if line.watching:
                    watches(str(client.endpoint))
                if line.done:
                    return line
        raise NoAnswer(f"{client.endpoint} broke off: the process ended, or was detached", "see: probe list --dead")

    async def ask(client: Client) -> Hunted:
        following, others = asyncio.ensure_future(follow(client)), asyncio.ensure_future(found.wait())
        try:
            await asyncio.wait((following, others), return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                await asyncio.wait((following,), timeout=OTHERS_S)
            if not following.done():
                return Hunted(HuntLine(state="left"), await ask_loss(client))
            line = following.result()
            if line.origin is not None:
                found.set()
            return Hunted(line, await ask_loss(client))
        finally:
            for task in (following, others):
                task.cancel()
            await asyncio.gather(following, others, return_exceptions=True)

    return ask


def culprit(hunted: Mapping[int, Hunted]) -> int | None:
    """The rank whose finding came first: by step where the job counts its steps, otherwise by time; within one step by
    kind, as a gradient at its end may have come from another rank."""
    found = {rank: one.line for rank, one in hunted.items() if one.origin is not None}
    if not found:
        return None
    earliest = min(line.at or 0.0 for line in found.values())
    all_count = all(line.counted for line in found.values())

    def place(rank: int) -> tuple[float, int, float]:
        line = found[rank]
        assert line.origin is not None
        at = line.at or 0.0
        when = float(line.step or 0) if all_count else float(at - earliest > TOGETHER_S)
        return when, _ORDER.get(line.origin.kind, len(_ORDER)), at

    return min(found, key=place)


def sentence(hunted: Mapping[int, Hunted]) -> str:
    """What was found, over all ranks."""
    first = culprit(hunted)
    if first is None:
        return _nothing(hunted)
    one = hunted[first]
    said = f"rank {first}: "
    if one.loss is not None and one.loss.since is not None:
        said += f"{one.loss}: "
    assert one.origin is not None
    said += _made(one.origin, one.line.step)
    if one.line.last_good is None:
        said += "; it was so in the first step watched, so the first such value may be older"
    others = [rank for rank, other in hunted.items() if rank != first and other.origin is not None]
    return said + (f"; {num_ranks(others)} had it later" if others else "")


def _made(origin: Origin, step: int | None) -> str:
    value, module = origin.value, " or ".join(origin.modules)
    if origin.kind == "data":
        return f"the batch has {value} in step {step}" + (f", the input of {module}" if module else "")
    if origin.kind == "input":
        return f"the input of {module} has {value} in step {step}, and the batches were finite: made before the model"
    if origin.kind == "loss":
        return f"the loss has {value} in step {step}, made by the job's own code: the modules' outputs were finite"
    if origin.kind == "gradient":
        named = ", ".join(origin.gradients[:2]) + (
            f" and {len(origin.gradients) - 2} more" if origin.gradients[2:] else ""
        )
        return (
            f"the gradient of {named} has {value} at the end of step {step}; forward, loss and the gradients between"
            " modules were finite: it is the module's own weight gradient, or the job's code, or came from another rank"
        )
    if origin.kind == "backward":
        if not module:
            return f"the backward of the loss made {value} in step {step}, before the first module's"
        made = f"{module}{_own_code(origin)} made {value} in backward in step {step}"
        return f"{made}; the gradient of its output was finite"
    said = f"{module}{_own_code(origin)} made {value} in forward in step {step}"
    said += "" if origin.has_grad else " (without gradients)"
    said += f", in call {origin.call} of {origin.num_calls}" if origin.num_calls > 1 else ""
    said += "; its input was finite" if origin.came_in == "finite" else f"; its input had {origin.came_in} in it"
    if origin.own:
        said += f", but its {' and '.join(origin.own)} {'were' if origin.own[1:] else 'was'} not"
    return said + ("; it is compiled, what is inside is not visible" if origin.is_compiled else "")


def _own_code(origin: Origin) -> str:
    return f" (its own code, {origin.beside})" if origin.beside else ""


def _nothing(hunted: Mapping[int, Hunted]) -> str:
    watched = [one.line.watched for one in hunted.values()]
    calls = sum(one.line.calls for one in hunted.values())
    if not any(watched):
        return "nothing was watched"
    num = str(min(watched)) if min(watched) == max(watched) else f"{min(watched)} to {max(watched)}"
    return (
        f"nothing found: {num} steps on {num_ranks(hunted)}, {calls:,} module calls with their inputs, outputs and"
        " gradients"
    )


def blind_spots(hunted: Mapping[int, Hunted]) -> list[str]:
    """What was not seen, a sentence for each rank."""
    return [f"rank {rank}: {'; '.join(one.line.notes)}" for rank, one in sorted(hunted.items()) if one.line.notes]
