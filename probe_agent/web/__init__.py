"""The HTTP API over all targets of a host. Runs in the host server, or in the CLI for one question."""

from .access import Access
from .allowance import Allowance
from .app import create_app

__all__ = ["Access", "Allowance", "create_app"]
