"""The screen of one rank: its step times, phases, modules and stack."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

from probe_cli.render.stacks import stack_lines
from probe_cli.render.terminal import cut, visible
from probe_cli.text import age, mebibytes, percent, seconds

from .look import PHASES, Detail, Look, RankLook, Watcher
from .text import spark

__all__ = ["DetailScreen"]

BAR_WIDTH = 20


class DetailScreen(Screen[None]):
    """Follows one rank until it is left. `newest` returns the newest look, None before the first one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace", "app.pop_screen", "Back"),
        Binding("q", "app.quit", "Quit"),
        Binding("space,p", "app.pause", "Pause"),
    ]
    CSS = """
    #who { height: auto; padding: 0 1; text-style: bold; }
    #times { height: auto; padding: 0 1; }
    #parts { height: auto; max-height: 50%; }
    #phases { width: 46; padding: 0 1; }
    #modules { width: 1fr; padding: 0 1; height: auto; }
    #stack { height: 1fr; border-top: solid $accent; padding: 0 1; }
    """

    def __init__(
        self,
        watcher: Watcher,
        key: str,
        interval_s: float,
        newest: Callable[[], Look | None],
        is_paused: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._watcher = watcher
        self._key = key
        self._interval_s = interval_s
        self._newest = newest
        self._is_paused = is_paused
        self.detail: Detail | None = None

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static("", id="who")
            yield Static("", id="times")
            with Horizontal(id="parts"):
                yield Static("", id="phases")
                yield Static("modules: asking …", id="modules")
            with VerticalScroll(id="stack"):
                yield Static("stack: asking …", id="frames")
        yield Footer()

    def on_mount(self) -> None:
        self._draw()
        self._ask()
        self.set_interval(self._interval_s, self._again)

    def _again(self) -> None:
        if not self._is_paused():
            self._draw()
            self._ask()

    @work(thread=True, exclusive=True, group="detail")
    def _ask(self) -> None:
        detail = self._watcher.detail(self._key)
        self.app.call_from_thread(self._show, detail)

    def _rank(self) -> RankLook | None:
        look = self._newest()
        return next((rank for rank in look.ranks if rank.key == self._key), None) if look is not None else None

    def _draw(self) -> None:
        rank = self._rank()
        if rank is None:
            self.query_one("#who", Static).update("this rank is not found any more")
            return
        info = rank.info
        who = f"rank {info.rank} of {info.world_size}" if info.rank is not None else "no rank"
        state = info.state if info.alive else info.ended or "ended"
        said = f"{who} · pid {info.pid} on {info.host} · {state} · {' '.join(info.command)}"
        self.query_one("#who", Static).update(Text(cut(visible(said), max(20, self.app.size.width - 2))))
        self.query_one("#times", Static).update(Text("\n".join(self._times(rank))))
        self.query_one("#phases", Static).update(Text("\n".join(_phases(rank))))

    def _times(self, rank: RankLook) -> list[str]:
        if rank.step is None or rank.usual is None:
            return [visible(rank.problem) or "no step is recorded yet"]
        width = max(10, self.app.size.width - 2)
        parts = [f"step {rank.step:,}, {age(rank.age)} ago", f"{seconds(rank.usual)} each"]
        longest = max(rank.durations, default=0.0)
        parts += [f"longest of {len(rank.durations)}: {seconds(longest)}"]
        loss = rank.steps.get("loss")
        parts += [f"loss {loss:.4g}" if isinstance(loss, float) else f"loss {loss}"] if loss is not None else []
        parts += [f"memory {mebibytes(rank.memory)}"] if rank.memory is not None else []
        return [" · ".join(parts), spark(rank.durations, width, 0.0, longest)]

    def _show(self, detail: Detail) -> None:
        if not self.is_attached:
            return
        self.detail = detail
        self.query_one("#modules", Static).update(Text("\n".join(_modules(detail.modules))))
        lines = list(stack_lines(detail.stack, colour=False)) if detail.stack is not None else [visible(detail.problem)]
        self.query_one("#frames", Static).update(Text("\n".join(lines)))


def _phases(rank: RankLook) -> list[str]:
    if not rank.shares:
        return ["phases: no step is recorded yet"]
    lines = ["phases, a step"]
    num = max(1, len(rank.durations))
    for name in PHASES:
        share = rank.shares[name]
        if share >= 0.0005:
            each = seconds((rank.steps.get(name) or 0.0) / num)
            lines.append(f"{name:<11}{each:>8} {percent(share):>5} {'█' * round(share * BAR_WIDTH)}")
    if rank.waited is not None and rank.steps.get("lasted"):
        lines.append(
            f"{'in waits':<11}{seconds(rank.waited / num):>8} {percent(rank.waited / rank.steps['lasted']):>5}"
        )
    return lines


def _modules(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return ["modules: no sampled step is recorded yet"]
    shown = [(visible(f"{row['module']} {row['stage']}"), seconds(row["own"])) for row in rows]
    return ["modules, own time a sampled step", *(f"{own:>8}  {name}" for name, own in shown)]
