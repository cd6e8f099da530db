"""CPU profiles without the recorder's own threads, in each of py-spy's formats, and how many samples those had.

Runs beside the target, once a profile has been taken; milliseconds. Our code in the job's threads stays: the job pays
for it.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable

__all__ = ["WITHOUT_OURS"]

#: Where threads of ours begin, whether the recorder was carried in or imported, as py-spy writes a frame.
_OURS = r"\((?:<probe>/\S*\.|\S*/probe_agent/recorder/)"
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


#: By py-spy's format: the profile without our threads, and how many samples these had.
WITHOUT_OURS: dict[str, Callable[[bytes], tuple[bytes, int]]] = {
    "raw": _folded,
    "speedscope": _speedscope,
    "flamegraph": _svg,
}
