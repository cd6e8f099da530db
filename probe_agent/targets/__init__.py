"""Targets as seen from beside them: which there are, what they recorded, how to ask them. Standard library only.

Runs in the host server and in query workers, never in the target.
"""

from probe_agent.procfs import Process, read_process

from .control import ask, settings, stream
from .cpu_profile import CpuProfile
from .death_watch import watch_deaths
from .directory import ArchiveDirectory, TargetDirectory
from .ended import exceptions_of
from .folder_files import WhyEmpty, read_awaited
from .local_ranks import children_of, launched_by, siblings_of
from .memory import host_memory
from .peers import peers_of
from .rings import Ring, RingError
from .source_text import read_source, source_line, with_source
from .stacks import take_stacks, take_tasks, with_native
from .stalls import StallSnapshot, read_stall_snapshot, stall_text
from .startup import read_startup, startup_phases, startup_text
from .target import Target, newest_step, without_recorder
from .workers import stacks_of_workers, take_worker_stacks, workers_of

__all__ = [
    "ArchiveDirectory",
    "CpuProfile",
    "Process",
    "Ring",
    "RingError",
    "StallSnapshot",
    "Target",
    "TargetDirectory",
    "WhyEmpty",
    "ask",
    "children_of",
    "exceptions_of",
    "host_memory",
    "launched_by",
    "newest_step",
    "peers_of",
    "read_awaited",
    "read_process",
    "read_source",
    "read_stall_snapshot",
    "read_startup",
    "settings",
    "siblings_of",
    "source_line",
    "stacks_of_workers",
    "stall_text",
    "startup_phases",
    "startup_text",
    "stream",
    "take_stacks",
    "take_tasks",
    "take_worker_stacks",
    "watch_deaths",
    "with_native",
    "with_source",
    "without_recorder",
    "workers_of",
]
