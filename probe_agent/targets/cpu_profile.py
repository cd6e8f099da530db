"""CPU profile of a target: its stacks, sampled from outside for some seconds, without the recorder's own threads.

Runs beside the target; `inject/py_spy.py` says what it costs. Our code in the job's threads stays in the profile:
the job pays for it.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from probe_agent import inject
from probe_agent.wire import CpuProfileRequest

from .target import Target

__all__ = ["CpuProfile", "Sampled"]

_FORMATS = {"svg": "flamegraph", "html": "flamegraph", "speedscope": "speedscope", "folded": "raw"}
#: The picture is a document with a script of its own, so it works in a page as it does alone.
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>html, body, iframe {{ margin: 0; border: 0; width: 100%; height: 100% }}</style>
<iframe title="{title}" src="data:image/svg+xml;base64,{picture}"></iframe>
</html>
"""


#: The outermost frame of the recorder's threads as py-spy writes it, whether it was carried in or imported.
_OURS = r"\((?:<probe>/\S*\.|\S*/probe_agent/recorder/(?:\w+/)*)"
_BEGINNING = re.compile(rf"start\w* {_OURS}boot|_run {_OURS}own_threads")
_GROUP = re.compile(
    r"<g><title>(?P<title>[^<]*) \([\d,]+ samples?, [\d.]+%\)</title>"
    r'<rect x="[\d.]+%" (?P<y>y="\d+") width="[\d.]+%"(?P<style>.*?)'
    r' fg:x="(?P<x>\d+)" fg:w="(?P<w>\d+)"/><text x="[\d.]+%" (?P<text>.*?</text>)</g>',
    re.DOTALL,
)
_TOTAL = re.compile(r'total_samples="\d+"')


def _folded(data: bytes) -> tuple[bytes, int]:
    kept, num_ours = [], 0
    for line in data.decode("utf-8", "replace").splitlines():
        stack, _, count = line.rpartition(" ")
        if _BEGINNING.search(stack) and count.isdigit():
            num_ours += int(count)
        else:
            kept.append(line + "\n")
    return "".join(kept).encode(), num_ours


def _speedscope(data: bytes) -> tuple[bytes, int]:
    profile = json.loads(data)
    ours = {
        number
        for number, frame in enumerate(profile["shared"]["frames"])
        if _BEGINNING.search(f"{frame['name']} ({frame['file']}")
    }
    kept, num_ours = [], 0
    for thread in profile["profiles"]:
        if any(ours.intersection(sample) for sample in thread["samples"]):
            num_ours += len(thread["samples"])
        else:
            kept.append(thread)
    return json.dumps({**profile, "profiles": kept}).encode(), num_ours


def _svg(data: bytes) -> tuple[bytes, int]:
    text = data.decode("utf-8", "replace")
    frames = [(int(found["x"]), int(found["w"]), found) for found in _GROUP.finditer(text)]
    total = max((width for _, width, _ in frames), default=0)
    begun = [x for x, _, found in frames if _BEGINNING.search(html.unescape(found["title"]))]
    threads = [(x, w) for x, w, found in frames if found["title"].startswith("thread (")]
    ours = [(x, w) for x, w in threads if any(x <= at < x + w for at in begun)]
    left = total - sum(w for _, w in ours)
    if not ours or not left:
        return data, 0

    def drawn(found: re.Match[str]) -> str:
        x, w = int(found["x"]), int(found["w"])
        if w == total:
            w = left
        elif any(at <= x < at + width for at, width in ours):
            return ""
        x -= sum(width for at, width in ours if at < x)
        head = f"<g><title>{found['title']} ({w:,} samples, {100 * w / left:.2f}%)</title>"
        box = f'<rect x="{100 * x / left:.4f}%" {found["y"]} width="{100 * w / left:.4f}%"{found["style"]}'
        return f'{head}{box} fg:x="{x}" fg:w="{w}"/><text x="{100 * x / left + 0.25:.4f}%" {found["text"]}</g>'

    return _TOTAL.sub(f'total_samples="{left}"', _GROUP.sub(drawn, text)).encode(), total - left


#: By py-spy's format: a function that returns the profile without our threads, and how many samples these had.
_WITHOUT_OURS: dict[str, Callable[[bytes], tuple[bytes, int]]] = {
    "raw": _folded,
    "speedscope": _speedscope,
    "flamegraph": _svg,
}


@dataclass(frozen=True)
class Sampled:
    """A profile in the requested format, with notes."""

    data: bytes
    notes: list[str]


class CpuProfile:
    """One profile of one target; `cancel` may be called from another thread."""

    def __init__(self, target: Target, wanted: CpuProfileRequest) -> None:
        self._target = target
        self._wanted = wanted
        self._sampler = inject.Sampler(
            target.pid, wanted.seconds, wanted.rate, idle=wanted.idle, format_=_FORMATS[wanted.format]
        )

    def take(self) -> Sampled:
        """Sample until the time is over. Raises NoAnswer."""
        data, note = self._sampler.run()
        data, num_ours = _WITHOUT_OURS[_FORMATS[self._wanted.format]](data)
        if num_ours:
            note += f"; {num_ours:,} samples of Probe's own threads are left out"
        if self._wanted.format == "html":
            title = f"{self._target}: {self._wanted.seconds} s of CPU time"
            data = _PAGE.format(title=title, picture=base64.b64encode(data).decode("ascii")).encode()
        return Sampled(data, [note])

    def cancel(self) -> None:
        """End it at once."""
        self._sampler.cancel()
