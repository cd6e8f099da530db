"""Debug settings that were left on, by a rule of `diagnose`."""

from probe_cli.diagnose.check import Check

__all__ = ["CHECK"]

CHECK = Check("debug-flags", "Were debug settings left on?", rules=("debug-flags",), fine="no debug setting is on")
