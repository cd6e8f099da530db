"""The recorder's settings with their defaults, units and meanings, and the only reader of their environment variables.

The training thread reads a setting with one dictionary lookup; `probe … config name=value` changes it meanwhile.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Union

__all__ = ["SETTINGS", "Setting", "SettingError", "Settings", "unknown_variables"]

Value = Union[int, float, bool, str]


class SettingError(ValueError):
    """An unknown setting or an invalid value; `hint` names valid ones."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Setting(NamedTuple):
    """One setting, of the type of its default; a `live` one takes effect while the target runs."""

    name: str
    default: Value
    unit: str
    meaning: str
    minimum: float = 0
    live: bool = True
    #: Value used in place of an invalid one; None uses the default.
    if_unclear: Value | None = None

    @property
    def env(self) -> str:
        """Name of the environment variable read when the recorder starts."""
        return "PROBE_" + self.name.upper().replace(".", "_")

    def parse(self, text: str) -> Value:
        """Return the value that `text` stands for. Raises SettingError."""
        if isinstance(self.default, str):
            return self._parse_path(text)
        try:
            if isinstance(self.default, bool):
                return {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}[text.lower()]
            value = type(self.default)(text)
        except (ValueError, KeyError):
            kind = {bool: "on or off", int: "a whole number", float: "a number"}[type(self.default)]
            unit = f" ({self.unit})" if self.unit else ""
            raise SettingError(f"invalid value {text!r} for {self.name}", f"use {kind}{unit}") from None
        if value < self.minimum:
            raise SettingError(f"invalid value {text!r} for {self.name}", f"use {self.minimum:g} or more")
        return value

    def _parse_path(self, text: str) -> str:
        if text.strip() and _PATH.fullmatch(text.strip()) is None:
            hint = 'use a variable and a path from it, such as trainer.global_step or state["step"]'
            raise SettingError(f"invalid value {text!r} for {self.name}", hint)
        return text.strip()

    def show(self, value: Value) -> str:
        """Return a value as the text that `parse` accepts."""
        if isinstance(self.default, bool):
            return "on" if value else "off"
        return str(value)


#: Value that restores the default of a setting.
DEFAULT = "default"
_PATH = re.compile(r"""[A-Za-z_]\w*(\.[A-Za-z_]\w*|\[(\d+|'[^']*'|"[^"]*")\])*""")

SETTINGS: tuple[Setting, ...] = (
    Setting("trace.every", 20, "steps", "record module timings on one step in this many; 0 records none"),
    Setting(
        "trace.deep_every",
        5,
        "sampled steps",
        "record each module's backward and the gradient norm on one sampled step in this many; 0 records neither",
    ),
    Setting(
        "trace.budget",
        1.0,
        "%",
        "share of the job's time that recording may take: while it certainly takes more, fewer steps are sampled than"
        " trace.every says, unless trace.every was set by hand; a tenth of the budget is always reserved for sampling;"
        " 0 sets no limit",
    ),
    Setting(
        "step.from",
        "",
        "",
        "variable that holds the job's step number when optimizer.step() returns, such as trainer.global_step; empty"
        " uses the count of a Hugging Face or Lightning Trainer, or of the optimizer",
    ),
    Setting("trace.rows", 131_072, "rows", "capacity of the ring of python.torch_trace", 1_000, live=False),
    Setting("steps.rows", 65_536, "rows", "capacity of the ring of python.steps", 1_000, live=False),
    Setting(
        "memory.history",
        0,
        "events",
        "events that torch's CUDA allocator keeps with their Python stack, for torch.memory_blocks; 0 keeps none",
    ),
    Setting(
        "stall.watch",
        True,
        "",
        "write a snapshot beside the rings (stall.json) and a row of python.stalls when steps have stopped",
    ),
    Setting(
        "stall.after",
        60.0,
        "s",
        "time without the end of a step that counts as a stall, if it is also ten times the median step",
        0.1,
    ),
    Setting("stall.size", 512, "KiB", "size limit of the snapshot; what does not fit is left out and counted", 4),
    Setting(
        "rings.scale",
        1.0,
        "",
        "factor on the capacity of every ring; at 1 all rings together take at most 64 MiB",
        0.01,
        live=False,
    ),
    Setting(
        "readonly",
        False,
        "",
        "refuse every request to run code in this target, change its settings, profile it, watch its variables or"
        " detach, until it ends; a value that is neither on nor off counts as on",
        live=False,
        if_unclear=True,
    ),
    Setting(
        "dead.hours",
        24.0,
        "h",
        "time for which what a target left is kept after its death; read when a recorder or host server starts",
        live=False,
    ),
    Setting(
        "dead.size",
        1024.0,
        "MiB",
        "space that all of it may take, the oldest goes first; never more than a quarter of the file system it is on",
        live=False,
    ),
    Setting("flush.interval", 0.25, "s", "interval at which rows are written out and memory counters are read", 0.01),
)
_BY_NAME: dict[str, Setting] = {setting.name: setting for setting in SETTINGS}
#: Variables that the launcher, the host server and the command line read.
_OTHER_VARIABLES = (
    "PROBE",
    "PROBE_CA",
    "PROBE_CLIENT_CERT",
    "PROBE_CLIENT_KEY",
    "PROBE_ENDPOINT",
    "PROBE_INSECURE",
    "PROBE_LINGER",
    "PROBE_LISTEN",
    "PROBE_RANKS",
    "PROBE_READ_MEMORY",
    "PROBE_READ_TIMEOUT",
    "PROBE_READ_TOKEN",
    "PROBE_RUNTIME_DIR",
    "PROBE_SCRIPT",
    "PROBE_SERVER_PYTHON",
    "PROBE_TLS_CERT",
    "PROBE_TLS_CLIENT_CA",
    "PROBE_TLS_KEY",
    "PROBE_TOKEN",
    "PROBE_TOKEN_FILE",
)
#: Variables that Kubernetes sets in every pod for a service named `probe` or `probe-…`.
_OF_KUBERNETES = re.compile(r"PROBE_(\w+_)?(SERVICE_(HOST|PORT\w*)|PORT(_\d+_\w+)?)")


def unknown_variables(environ: Mapping[str, str]) -> list[SettingError]:
    """Return one problem for each variable in `environ` that begins with PROBE_ and is unknown."""
    known = [*_OTHER_VARIABLES, *(setting.env for setting in SETTINGS)]
    return [
        SettingError(f"{name} is ignored: unknown variable", _meant(name, known))
        for name in sorted(environ)
        if name.startswith("PROBE_") and name not in known and not _OF_KUBERNETES.fullmatch(name)
    ]


def _meant(name: str, known: list[str]) -> str:
    # Without the prefix, which makes any two alike.
    near = difflib.get_close_matches(name[6:], [other[6:] for other in known], 1, 0.6)
    return f"set PROBE_{near[0]}" if near else "see docs/reference/settings.md for the list"


class Settings(dict[str, Any]):  # each value has the type of its setting's default
    """The values in force in this target: `settings["trace.every"]`, one dictionary lookup."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """Take the defaults, overridden by the environment. Raises nothing: `problems` has the ignored variables."""
        super().__init__((setting.name, setting.default) for setting in SETTINGS)
        #: Source of each changed value: the environment, or a change while the recorder runs.
        self._by_hand: dict[str, str] = {}
        self.problems = unknown_variables(environ)
        for setting in SETTINGS:
            if setting.env in environ:
                try:
                    self[setting.name] = setting.parse(environ[setting.env])
                    self._by_hand[setting.name] = f"set by {setting.env}"
                except SettingError as error:
                    text = f"{setting.env}={environ[setting.env]} is ignored: {error.message}"
                    self.problems.append(SettingError(text, error.hint))
                    if setting.if_unclear is not None:
                        self[setting.name] = setting.if_unclear

    def change(self, changes: Mapping[str, str]) -> None:
        """Apply all of `changes`, or none if one is invalid; `default` restores a default. Raises SettingError."""
        parsed: dict[str, Value] = {}
        for name, text in changes.items():
            setting = _BY_NAME.get(name)
            if setting is None:
                near = difflib.get_close_matches(name, _BY_NAME, 3, 0.4) or list(_BY_NAME)
                raise SettingError(f"unknown setting {name!r}", "use one of: " + ", ".join(near))
            if not setting.live:
                raise SettingError(
                    f"{name} cannot change while the recorder runs",
                    f"start the job with {setting.env}={text}",
                )
            parsed[name] = setting.default if text == DEFAULT else setting.parse(text)
        self.update(parsed)
        for name, text in changes.items():
            if text == DEFAULT:
                self._by_hand.pop(name, None)
            else:
                self._by_hand[name] = "set by probe config"

    @property
    def kept_after_death(self) -> tuple[float, float]:
        """For how many seconds, and in how many bytes, what dead targets left is kept."""
        return float(self["dead.hours"]) * 3600, float(self["dead.size"]) * 1024 * 1024

    def is_by_hand(self, name: str) -> bool:
        """Return whether a user has set `name`; the recorder then leaves it alone."""
        return name in self._by_hand

    def describe(self) -> list[dict[str, str]]:
        """Return one entry per setting, with values as text, as the control protocol sends them."""
        return [
            {
                "name": setting.name,
                "value": setting.show(self[setting.name]),
                "in_force": setting.show(self[setting.name]),
                "why": self._by_hand.get(setting.name, ""),
                "default": setting.show(setting.default),
                "unit": setting.unit,
                "meaning": setting.meaning,
                "env": setting.env,
            }
            for setting in SETTINGS
        ]
