"""The host as its kernel tells of it: log, network, pressure, disks. Runs in the host server, once a host."""

from . import disks, network, pressure
from .history import History
from .kernel_events import Event, events
from .kernel_log import LogUnreadable, read_log

__all__ = ["Event", "History", "LogUnreadable", "disks", "events", "network", "pressure", "read_log"]
