"""SQL over what targets recorded and over what they are doing now. Runs in the host server, never in the target."""

from .catalog import list_tables
from .deadline import Deadline
from .engine import Answer, QueryEngine
from .live.gpu_samples import sample_host
from .merged import MalformedAnswer, MergedDatabase, NotThere
from .newest_step import newest_step

__all__ = [
    "Answer",
    "Deadline",
    "MalformedAnswer",
    "MergedDatabase",
    "NotThere",
    "QueryEngine",
    "list_tables",
    "newest_step",
    "sample_host",
]
