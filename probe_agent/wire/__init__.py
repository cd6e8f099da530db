"""What the CLI and the host server say to each other: frozen dataclasses, standard library only.

The server hands them to FastAPI as models, so the sentence below a field is its description in the API's docs.
The CLI reads answers into the same classes with `decode`. Importing this costs a few milliseconds.
"""

from .decoding import decode
from .evaluation import (
    CompletionRequest,
    Completions,
    EvalLine,
    EvalRequest,
    HoldRequest,
    StepMark,
    TicketMove,
    TicketState,
    WatchLine,
    WatchRequest,
)
from .host import Cleaned, CleanRequest, HostClock, Problem, ProblemAnswer, Removed
from .job import Launched, LaunchedList, Peer, PeerList, SiblingList
from .profile import CpuProfileRequest, ProfileLine, ProfileRequest
from .query import QueryColumn, QueryRequest, QueryResult
from .settings import SettingChanges, SettingInfo, SettingList
from .stacks import Backtrace, Frame, ThreadStack
from .suggestions import suggest, suggest_column, suggest_table
from .tables import ColumnInfo, TableInfo, TableList, quoted, shape
from .target import Candidate, Detached, DetachRequest, Health, TargetInfo, TargetList

__all__ = [
    "Backtrace",
    "Candidate",
    "CleanRequest",
    "Cleaned",
    "ColumnInfo",
    "CompletionRequest",
    "Completions",
    "CpuProfileRequest",
    "DetachRequest",
    "Detached",
    "EvalLine",
    "EvalRequest",
    "Frame",
    "Health",
    "HoldRequest",
    "HostClock",
    "Launched",
    "LaunchedList",
    "Peer",
    "PeerList",
    "Problem",
    "ProblemAnswer",
    "ProfileLine",
    "ProfileRequest",
    "QueryColumn",
    "QueryRequest",
    "QueryResult",
    "Removed",
    "SettingChanges",
    "SettingInfo",
    "SettingList",
    "SiblingList",
    "StepMark",
    "TableInfo",
    "TableList",
    "TargetInfo",
    "TargetList",
    "ThreadStack",
    "TicketMove",
    "TicketState",
    "WatchLine",
    "WatchRequest",
    "decode",
    "quoted",
    "shape",
    "suggest",
    "suggest_column",
    "suggest_table",
]
