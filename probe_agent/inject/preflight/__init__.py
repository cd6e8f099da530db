"""Checks before anything is touched. They run in the attaching process."""

from .check import Check
from .checks import examine, require, require_calls

__all__ = ["Check", "examine", "require", "require_calls"]
