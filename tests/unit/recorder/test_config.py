"""Settings: defaults, the environment, live changes, and errors with the valid values."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from probe_agent.recorder import config
from probe_agent.recorder.config import SETTINGS, SettingError, Settings, unknown_variables


def test_every_setting_shows_as_text_that_it_takes_back():
    for setting in SETTINGS:
        assert setting.parse(setting.show(setting.default)) == setting.default


def test_the_environment_overrides_defaults():
    assert Settings({"PROBE_TRACE_EVERY": "7"})["trace.every"] == 7


def test_a_bad_variable_leaves_the_default_and_is_reported():
    settings = Settings({"PROBE_TRACE_EVERY": "often"})

    assert settings["trace.every"] == 20
    assert "often" in settings.problems[0].message


def test_a_misspelt_setting_names_its_neighbour():
    with pytest.raises(SettingError) as caught:
        Settings({}).change({"trace.evry": "1"})

    assert "trace.every" in caught.value.hint


@pytest.mark.parametrize("value", ["-1", "1.5", "x", ""])
def test_values_out_of_range_are_refused(value):
    with pytest.raises(SettingError):
        Settings({}).change({"trace.every": value})


def test_several_changes_are_all_made_or_none():
    settings = Settings({})

    with pytest.raises(SettingError):
        settings.change({"trace.every": "1", "trace.deep_every": "x"})

    assert settings["trace.every"] == 20


def test_a_setting_that_is_read_at_the_start_says_so():
    with pytest.raises(SettingError) as caught:
        Settings({}).change({"trace.rows": "5000"})

    assert "PROBE_TRACE_ROWS=5000" in caught.value.hint


def test_a_target_that_was_to_be_read_only_is_so_however_that_was_spelt() -> None:
    assert not Settings({})["readonly"]
    assert not Settings({"PROBE_READONLY": "0"})["readonly"]
    assert Settings({"PROBE_READONLY": "1"})["readonly"]
    assert Settings({"PROBE_READONLY": "sure"})["readonly"]
    with pytest.raises(SettingError, match="cannot change while"):
        Settings({"PROBE_READONLY": "1"}).change({"readonly": "off"})


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("PROBE_STEPS_ROWS=500", "PROBE_STEPS_ROWS=500 is ignored: invalid value '500' for steps.rows; use 10"),
        ("PROBE_STEP_ROWS=5000", "PROBE_STEP_ROWS is ignored: unknown variable; set PROBE_STEPS_ROWS"),
        ("PROBE_LISTN=:80", "PROBE_LISTN is ignored: unknown variable; set PROBE_LISTEN"),
    ],
)
def test_an_ignored_variable_is_reported_with_the_right_one(variable: str, said: str) -> None:
    name, _, value = variable.partition("=")

    (problem,) = Settings({name: value}).problems

    assert f"{problem.message}; {problem.hint}".startswith(said)


def test_variables_of_a_kubernetes_service_called_probe_are_not_reported() -> None:
    names = ["PROBE_SERVICE_HOST", "PROBE_PORT", "PROBE_PORT_80_TCP_ADDR", "PROBE_UI_SERVICE_PORT_HTTP"]

    assert Settings(dict.fromkeys(names, "x")).problems == []


def test_every_variable_that_is_read_anywhere_is_known() -> None:
    package = Path(config.__file__).parents[2]
    files = [file for name in ("probe_agent", "probe_cli") for file in (package / name).rglob("*.py")]
    read = {name for file in files for name in re.findall(r"[\"'](PROBE_[A-Z_]*[A-Z])[\"']", file.read_text())}

    assert "PROBE_ENDPOINT" in read
    assert unknown_variables(dict.fromkeys(read, "")) == []


def test_a_setting_can_be_reset_and_its_origin_is_shown() -> None:
    settings = Settings({"PROBE_TRACE_EVERY": "7"})
    by_environment = {entry["name"]: entry for entry in settings.describe()}["trace.every"]
    settings.change({"trace.every": "default", "trace.budget": "2"})
    shown = {entry["name"]: entry for entry in settings.describe()}

    assert by_environment["why"] == "set by PROBE_TRACE_EVERY"
    assert (shown["trace.every"]["value"], shown["trace.every"]["why"]) == ("20", "")
    assert shown["trace.budget"]["in_force"] == "2.0"
    assert shown["trace.budget"]["why"] == "set by probe config"
    assert settings.is_by_hand("trace.budget")
    assert not settings.is_by_hand("trace.every")
