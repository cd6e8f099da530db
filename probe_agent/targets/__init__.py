"""One target as seen from beside it: where it is, what it recorded, how to ask it. Standard library only.

Runs in the host server and in the CLI, never in the target.
"""

from probe_agent.procfs import Process, read_process

from .archive import ArchiveDirectory
from .awaited import WhyEmpty, read_awaited
from .control import ask, stream
from .cpu_profile import CpuProfile
from .directory import TargetDirectory
from .launched import launched_by
from .peers import peers_of
from .rings import Ring, RingError
from .settings import settings
from .siblings import siblings_of
from .source_text import read_source, with_source
from .stacks import take_stacks
from .target import Target, without_recorder
from .workers import take_worker_stacks, workers_of

__all__ = [
    "ArchiveDirectory",
    "CpuProfile",
    "Process",
    "Ring",
    "RingError",
    "Target",
    "TargetDirectory",
    "WhyEmpty",
    "ask",
    "launched_by",
    "peers_of",
    "read_awaited",
    "read_process",
    "read_source",
    "settings",
    "siblings_of",
    "stream",
    "take_stacks",
    "take_worker_stacks",
    "with_source",
    "without_recorder",
    "workers_of",
]
