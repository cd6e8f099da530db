"""Where a target's CPU time goes: its stacks sampled from outside for some seconds.

Runs beside the target; what it costs is said in `inject/cpu_profile.py`.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

from probe_agent.wire import CpuProfileRequest

from .own_samples import WITHOUT_OURS
from .target import Target

__all__ = ["CpuProfile", "Sampled"]

_FORMATS = {"svg": "flamegraph", "html": "flamegraph", "speedscope": "speedscope", "folded": "raw"}
#: The picture is a document of its own, with its own script, so that it works in a page as it does alone.
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>html, body, iframe {{ margin: 0; border: 0; width: 100%; height: 100% }}</style>
<iframe title="{title}" src="data:image/svg+xml;base64,{picture}"></iframe>
</html>
"""


@dataclass(frozen=True)
class Sampled:
    """A profile in the format that was asked for, and what has to be known about it."""

    data: bytes
    notes: list[str]


class CpuProfile:
    """One profile of one target; `cancel` may be called from another thread."""

    def __init__(self, target: Target, wanted: CpuProfileRequest) -> None:
        from probe_agent import inject

        self._target = target
        self._wanted = wanted
        self._sampler = inject.Sampler(
            target.pid, wanted.seconds, wanted.rate, idle=wanted.idle, format_=_FORMATS[wanted.format]
        )

    def take(self) -> Sampled:
        """Sample to the end. Raises NoAnswer."""
        data, note = self._sampler.run()
        data, num_ours = WITHOUT_OURS[_FORMATS[self._wanted.format]](data)
        if num_ours:
            note += f"; {num_ours:,} of them were of Probe's own threads and are left out"
        if self._wanted.format == "html":
            title = f"{self._target}: {self._wanted.seconds} s of CPU time"
            data = _PAGE.format(title=title, picture=base64.b64encode(data).decode("ascii")).encode()
        return Sampled(data, [note])

    def cancel(self) -> None:
        """End it now."""
        self._sampler.cancel()
