"""Every setting: its default, unit and meaning, and the one place that reads it from the environment.

Read on the training thread, one dictionary lookup each; changed live by `probe … config name=value`.
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
    """A setting that does not exist or a value it cannot have; `hint` says what would do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Setting(NamedTuple):
    """One setting. Its type is that of its default; `live` ones take effect while the target runs."""

    name: str
    default: Value
    unit: str
    meaning: str
    minimum: float = 0
    live: bool = True
    #: What a value counts as that it cannot have; the default, unless that would be the careless choice.
    if_unclear: Value | None = None

    @property
    def env(self) -> str:
        """The environment variable read when the recorder starts."""
        return "PROBE_" + self.name.upper().replace(".", "_")

    def parse(self, text: str) -> Value:
        """The value `text` stands for. Raises SettingError."""
        if isinstance(self.default, str):
            return self._parse_path(text)
        try:
            if isinstance(self.default, bool):
                return {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}[text.lower()]
            value = type(self.default)(text)
        except (ValueError, KeyError):
            kind = {bool: "on or off", int: "a whole number", float: "a number"}[type(self.default)]
            raise SettingError(
                f"{self.name} cannot be {text!r}", f"it takes {kind}, {self.unit or 'no unit'}"
            ) from None
        if value < self.minimum:
            raise SettingError(f"{self.name} cannot be {text}", f"the least it takes is {self.minimum:g}")
        return value

    def _parse_path(self, text: str) -> str:
        if text.strip() and _PATH.fullmatch(text.strip()) is None:
            hint = 'it takes a variable and what is reached from it, such as trainer.global_step or state["step"]'
            raise SettingError(f"{self.name} cannot be {text!r}", hint)
        return text.strip()

    def show(self, value: Value) -> str:
        """A value as text, the way `parse` takes it."""
        if isinstance(self.default, bool):
            return "on" if value else "off"
        return str(value)


#: The value that takes back what somebody has set.
DEFAULT = "default"
_PATH = re.compile(r"""[A-Za-z_]\w*(\.[A-Za-z_]\w*|\[(\d+|'[^']*'|"[^"]*")\])*""")

SETTINGS: tuple[Setting, ...] = (
    Setting("trace.every", 20, "steps", "module timings are recorded on one step in this many; 0 records none"),
    Setting(
        "trace.deep_every",
        5,
        "sampled steps",
        "one sampled step in this many also records each module's backward and the norm of all gradients; 0 none",
    ),
    Setting(
        "trace.budget",
        1.0,
        "%",
        "what recording may cost the training of its time: as long as it is certain to cost more, fewer steps are"
        " sampled than trace.every says, unless that was set by hand; a tenth of the budget is always left for that; 0"
        " is no limit",
    ),
    Setting(
        "step.from",
        "",
        "",
        "where the job has the number of its step when optimizer.step() returns, such as trainer.global_step; empty:"
        " what the optimizer, or a Trainer of Hugging Face's or Lightning, counts",
    ),
    Setting("trace.rows", 131_072, "rows", "size of the ring of python.torch_trace", 1_000, live=False),
    Setting("steps.rows", 65_536, "rows", "size of the ring of python.steps", 1_000, live=False),
    Setting(
        "memory.history",
        0,
        "events",
        "torch's CUDA allocator keeps the Python stack of each block, for torch.memory_blocks; 0 does not",
    ),
    Setting(
        "rings.scale",
        1.0,
        "",
        "every ring keeps this many times its usual rows; at 1 all of them together take 64 MiB at most",
        0.01,
        live=False,
    ),
    Setting(
        "readonly",
        False,
        "",
        "until it ends nobody, whoever asks, can run code in this target, change its settings, profile it, watch its"
        " variables or detach; a value that is neither on nor off is on",
        live=False,
        if_unclear=True,
    ),
    Setting("flush.interval", 0.25, "s", "how often our thread looks after unwritten rows and memory", 0.01),
)
_BY_NAME: dict[str, Setting] = {setting.name: setting for setting in SETTINGS}
#: Variables that are no settings of the recorder: who starts, serves and asks reads them.
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
#: What Kubernetes sets in every pod for a service called `probe` or `probe-…`.
_OF_KUBERNETES = re.compile(r"PROBE_(\w+_)?(SERVICE_(HOST|PORT\w*)|PORT(_\d+_\w+)?)")


def unknown_variables(environ: Mapping[str, str]) -> list[SettingError]:
    """One problem for each variable in `environ` that looks like one of ours and is none."""
    known = [*_OTHER_VARIABLES, *(setting.env for setting in SETTINGS)]
    return [
        SettingError(f"{name} is ignored: there is no such variable", _meant(name, known))
        for name in sorted(environ)
        if name.startswith("PROBE_") and name not in known and not _OF_KUBERNETES.fullmatch(name)
    ]


def _meant(name: str, known: list[str]) -> str:
    # Without the prefix, which makes any two alike.
    near = difflib.get_close_matches(name[6:], [other[6:] for other in known], 1, 0.6)
    return f"set PROBE_{near[0]}" if near else "see docs/reference/settings.md for those there are"


class Settings(dict[str, Any]):  # each value has the type of its setting's default
    """The values in force in this target: `settings["trace.every"]`, one dictionary lookup."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """Defaults, overridden by the environment. A variable that is ignored is in `problems`, nothing is raised."""
        super().__init__((setting.name, setting.default) for setting in SETTINGS)
        #: Who has set what is not as it was: the environment, or a change while we run.
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
        """Set all of `changes`, or none of them when one is wrong; `default` takes back what was set. Raises
        SettingError."""
        parsed: dict[str, Value] = {}
        for name, text in changes.items():
            setting = _BY_NAME.get(name)
            if setting is None:
                near = difflib.get_close_matches(name, _BY_NAME, 3, 0.4) or list(_BY_NAME)
                raise SettingError(f"there is no setting {name!r}", "did you mean: " + ", ".join(near))
            if not setting.live:
                raise SettingError(
                    f"{name} cannot change while the recorder runs",
                    f"set {setting.env}={text} in the environment the job starts with",
                )
            parsed[name] = setting.default if text == DEFAULT else setting.parse(text)
        self.update(parsed)
        for name, text in changes.items():
            if text == DEFAULT:
                self._by_hand.pop(name, None)
            else:
                self._by_hand[name] = "set by probe config"

    def is_by_hand(self, name: str) -> bool:
        """Whether somebody has set it, so that it has to hold until they take it back."""
        return name in self._by_hand

    def describe(self) -> list[dict[str, str]]:
        """One entry a setting, values as text, as the control protocol sends them."""
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
