"""The screen of `probe … top`: a row for each rank, findings below. Textual draws; threads ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Static

from probe_agent.errors import ProbeError
from probe_cli.diagnose import Diagnosis
from probe_cli.render.terminal import cut, visible
from probe_cli.text import age, by_reason, mebibytes, percent, seconds

from .detail import DetailScreen
from .look import PHASES, Look, RankLook, Watcher
from .text import LETTERS, SORTS, found, is_silent, letters, place, sentence, sorted_by, spark

__all__ = ["COLOURS", "TopApp", "coloured"]

#: Findings are judged anew so often.
JUDGED_EVERY_S = 30.0
MAX_FINDINGS = 3
COLOURS = {
    "data_wait": "black on yellow", "forward": "black on cyan", "backward": "white on blue",
    "optimizer": "black on green", "evaluation": "white on magenta", "generation": "white on magenta",
    "other": "white on grey37",
}  # fmt: skip
#: Columns and their widths; those behind `wide` are left out on a narrow terminal. The rest is for the line.
NARROW = {"rank": 4, "step": 7, "last": 4, "each": 7, "steps": 10, "phases": 10, "memory": 8}
WIDE = {
    "rank": 4,
    "host": 10,
    "step": 9,
    "last": 6,
    "each": 7,
    "steps": 30,
    "phases": 20,
    "wait": 5,
    "memory": 9,
    "gpu": 5,
}
WIDE_FROM = 120
MIN_LINE = 12
#: What the line would like to have; on a wide terminal the sparkline gives it some of its own.
GOOD_LINE, MIN_STEPS = 24, 10


def coloured(drawn: str) -> Text:
    """Letters of phases, each in the colour of its phase."""
    by_letter = {LETTERS[name]: style for name, style in COLOURS.items()}
    text = Text()
    for letter in drawn:
        text.append(letter, style=by_letter[letter])
    return text


class FindingsScreen(ModalScreen[None]):
    """All findings, with what to try."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f,q", "dismiss", "Back")]
    CSS = """
    FindingsScreen { align: center middle; }
    #all {
        width: 90%; height: 80%; padding: 0 1; border: round $accent; overflow-y: auto; background: $surface;
    }
    """

    def __init__(self, diagnosis: Diagnosis | None) -> None:
        super().__init__()
        self._diagnosis = diagnosis

    def compose(self) -> ComposeResult:
        yield Static(Text("\n".join(self._lines())), id="all")
        yield Footer()

    def _lines(self) -> list[str]:
        if self._diagnosis is None:
            return ["the rules have not judged yet"]
        lines = []
        for one in self._diagnosis.findings:
            lines += found(Diagnosis((one,), {}, {}, ()), 1)
            lines += [f"  seen: {visible(seen)}" for seen in one.evidence]
            lines += [f"  try first: {visible(one.try_first)}"] * bool(one.try_first) + [""]
        lines += [] if lines else found(self._diagnosis, 0)
        return lines + [f"not judged: {visible(line)}" for line in by_reason(self._diagnosis.unjudged)]


class Ranks(DataTable[Text]):
    """A row for each rank; its key to open one is among those that are shown."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "Rank")]


class TopApp(App[int]):
    """Looks at the ranks every `interval_s` seconds until it is left; the result is the exit code."""

    TITLE = "probe top"
    CSS = """
    #sentence { height: auto; padding: 0 1; text-style: bold; }
    #about { height: auto; padding: 0 1; color: $text-muted; }
    #ranks { height: 1fr; overflow-x: hidden; }
    #findings { height: auto; max-height: 6; padding: 0 1; border-top: solid $accent; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("space,p", "pause", "Pause"),
        Binding("s", "sort", "Sort"),
        Binding("f", "findings", "Findings"),
        Binding("r", "refresh_now", "Refresh"),
    ]

    def __init__(self, watcher: Watcher, interval_s: float) -> None:
        super().__init__()
        self.watcher = watcher
        self.interval_s = interval_s
        self.is_paused = False
        self.sort = "rank"
        self.look: Look | None = None
        self.diagnosis: Diagnosis | None = None
        self.num_looks = 0
        #: A look is under way; it may take longer than the interval.
        self.is_looking = False
        self._keys: list[str] = []
        self._columns: dict[str, int] = {}

    def compose(self) -> ComposeResult:
        yield Static("looking for the ranks …", id="sentence")
        yield Static("", id="about")
        yield Ranks(id="ranks", cursor_type="row")
        yield Static("findings: judging …", id="findings")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(Ranks).focus()
        self._ask()
        self.set_interval(self.interval_s, self._ask_unless_paused)
        self.set_interval(JUDGED_EVERY_S, self._judge_unless_paused)

    def on_resize(self) -> None:
        self._draw()

    def _ask_unless_paused(self) -> None:
        if not self.is_paused:
            self._ask()

    def _judge_unless_paused(self) -> None:
        if not self.is_paused and self.look is not None:
            self._judge()

    @work(thread=True, group="look")
    def _ask(self) -> None:
        if self.is_looking:
            return
        self.is_looking = True
        try:
            look = self.watcher.look()
        except ProbeError as error:
            self.call_from_thread(self._failed, error)
        else:
            self.call_from_thread(self._show, look)
        finally:
            self.is_looking = False

    @work(thread=True, group="judge")
    def _judge(self) -> None:
        try:
            diagnosis = self.watcher.findings()
        except ProbeError as error:
            self.call_from_thread(self.query_one("#findings", Static).update, f"findings: {error.message}")
        else:
            self.call_from_thread(self._show_findings, diagnosis)

    def _failed(self, error: ProbeError) -> None:
        if self.look is None:  # there was never anything to see
            self.exit(
                error.exit_code, message=f"probe: {error.message}" + (f"\ntry: {error.hint}" if error.hint else "")
            )
            return
        self.query_one("#sentence", Static).update(Text(f"no answer: {visible(error.message)}", style="bold red"))

    def _show(self, look: Look) -> None:
        is_first = self.look is None
        self.look = look
        self.num_looks += 1
        self._draw()
        if is_first:
            self._judge()

    def _show_findings(self, diagnosis: Diagnosis) -> None:
        self.diagnosis = diagnosis
        lines = found(diagnosis, MAX_FINDINGS)
        text = Text("\n".join(cut(line, max(20, self.size.width - 2)) for line in lines))
        if diagnosis.findings:
            text.stylize("yellow")
        self.query_one("#findings", Static).update(text)

    def _draw(self) -> None:
        look = self.look
        if look is None:
            return
        silent = any(rank.problem or is_silent(rank) for rank in look.ranks) or bool(look.missing)
        said = Text(sentence(look), style="bold red" if silent else "bold")
        self.query_one("#sentence", Static).update(said)
        self._draw_about(look)
        self._draw_ranks(sorted_by(self.sort, look.ranks))

    def _draw_about(self, look: Look) -> None:
        jobs = {rank.info.job for rank in look.ranks if rank.info.job}
        hosts = {rank.info.host for rank in look.ranks}
        parts = [f"job {', '.join(sorted(jobs))}"] * bool(jobs)
        parts += [f"{len(look.ranks)} ranks on {next(iter(hosts)) if len(hosts) == 1 else f'{len(hosts)} hosts'}"]
        parts += [f"by {self.sort}", "paused" if self.is_paused else f"every {self.interval_s:g} s"]
        text = Text(visible(" · ".join(parts)))
        present = {name for rank in look.ranks for name, share in rank.shares.items() if share >= 0.005}
        shown = [name for name in PHASES if name in present]
        legend = sum(len(name.partition("_")[0]) + 4 for name in shown)
        text.append("   " if len(text) + legend < self.size.width else "\n")
        for name in shown:
            text.append(LETTERS[name], style=COLOURS[name])
            text.append(f" {name.partition('_')[0]}  ")
        self.query_one("#about", Static).update(text)

    def _draw_ranks(self, ranks: Sequence[RankLook]) -> None:
        table = self.query_one(Ranks)
        columns = dict(WIDE if self.size.width >= WIDE_FROM else NARROW)
        if not any(rank.gpu is not None for rank in ranks):
            columns.pop("gpu", None)
        if len({rank.info.host for rank in ranks}) < 2:
            columns.pop("host", None)
        room = self.size.width - sum(columns.values()) - 2 * (len(columns) + 1) - 2
        given = min(max(0, GOOD_LINE - room), columns["steps"] - MIN_STEPS)
        columns["steps"] -= given
        columns["line"] = max(MIN_LINE, room + given)
        kept = self._keys[table.cursor_row] if 0 <= table.cursor_row < len(self._keys) else None
        if columns != self._columns:
            table.clear(columns=True)
            for name, width in columns.items():
                table.add_column(name, width=width, key=name)
            self._columns, self._keys = columns, []
        every = [duration for one in ranks for duration in one.durations]
        scale = min(every, default=0.0), max(every, default=0.0)
        rows = [self._cells(rank, columns, scale) for rank in ranks]
        keys = [rank.key for rank in ranks]
        if keys == self._keys:
            for at, cells in enumerate(rows):
                for column, cell in enumerate(cells):
                    table.update_cell_at(Coordinate(at, column), cell)
            return
        table.clear()
        for key, cells in zip(keys, rows, strict=True):
            table.add_row(*cells, key=key)
        self._keys = keys
        if kept in keys:
            table.move_cursor(row=keys.index(kept), animate=False)

    def _cells(self, rank: RankLook, columns: dict[str, int], scale: tuple[float, float]) -> list[Text]:
        style = "red" if rank.problem or is_silent(rank) else "" if rank.info.alive else "dim"
        lasted = rank.steps.get("lasted")
        texts = {
            "rank": "-" if rank.info.rank is None else str(rank.info.rank),
            "host": visible(rank.info.host),
            "step": "" if rank.step is None else str(rank.step),
            "last": (age(rank.age) or "").partition(" ")[0],
            "each": "" if rank.usual is None else seconds(rank.usual),
            "steps": spark(rank.durations, columns["steps"], *scale),
            "wait": percent(rank.waited / lasted) if rank.waited is not None and lasted else "",
            "memory": "" if rank.memory is None else mebibytes(rank.memory),
            "gpu": "" if rank.gpu is None else percent(rank.gpu),
            "line": place(rank, columns["line"]),
        }
        right = {"rank", "step", "last", "each", "wait", "memory", "gpu"}
        cells = []
        for name, width in columns.items():
            if name == "phases":
                cells.append(coloured(letters(rank.shares, width)))
            else:
                cells.append(Text(cut(texts[name], width), style=style, justify="right" if name in right else "left"))
        return cells

    def action_pause(self) -> None:
        self.is_paused = not self.is_paused
        self._draw()

    def action_sort(self) -> None:
        names = list(SORTS)
        self.sort = names[(names.index(self.sort) + 1) % len(names)]
        self._draw()

    def action_refresh_now(self) -> None:
        self._ask()
        self._judge()

    def action_findings(self) -> None:
        self.push_screen(FindingsScreen(self.diagnosis))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if self.look is not None and event.row_key.value is not None:
            newest, is_paused = (lambda: self.look), (lambda: self.is_paused)
            self.push_screen(DetailScreen(self.watcher, event.row_key.value, self.interval_s, newest, is_paused))

    async def action_quit(self) -> None:
        self.exit(self.look.exit_code if self.look is not None else 0)
