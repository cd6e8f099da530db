"""Messages between the CLI and the host server: frozen dataclasses, standard library only.

The server hands them to FastAPI as models, so the sentence below a field is its description in the API's docs.
The CLI reads answers into the same classes with `decode`. A name's module is loaded when the name is asked for: making
all the dataclasses takes 20 ms, and a command needs a few of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .batch import BatchItem, BatchRequest
    from .dashboard import CodeRequest, JobAnswer, JobQueryRequest, PageCode, PageSession, SessionRequest
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
    from .job import (
        ExtendTimeoutRequest,
        GroupTimeout,
        GroupTimeouts,
        Launched,
        LaunchedList,
        Peer,
        PeerList,
        SiblingList,
    )
    from .memory import LeaksLine, LeaksRequest, SnapshotLine, SnapshotRequest
    from .profile import CpuProfileRequest, ProfileLine, ProfileRequest
    from .query import QueryColumn, QueryRequest, QueryResult
    from .settings import SettingChanges, SettingInfo, SettingList
    from .stacks import Backtrace, Frame, StacksRequest, TaskStack, ThreadStack, WorkerStack
    from .suggestions import suggest, suggest_column, suggest_table
    from .tables import ColumnInfo, TableInfo, TableList, quoted, shape
    from .target import Candidate, Detached, DetachRequest, Health, TargetInfo, TargetList
    from .tensors import HuntLine, HuntRequest, LookedAt, Origin, TensorsLine, TensorsRequest

__all__ = [
    "Backtrace",
    "BatchItem",
    "BatchRequest",
    "Candidate",
    "CleanRequest",
    "Cleaned",
    "CodeRequest",
    "ColumnInfo",
    "CompletionRequest",
    "Completions",
    "CpuProfileRequest",
    "DetachRequest",
    "Detached",
    "EvalLine",
    "EvalRequest",
    "ExtendTimeoutRequest",
    "Frame",
    "GroupTimeout",
    "GroupTimeouts",
    "Health",
    "HoldRequest",
    "HostClock",
    "HuntLine",
    "HuntRequest",
    "JobAnswer",
    "JobQueryRequest",
    "Launched",
    "LaunchedList",
    "LeaksLine",
    "LeaksRequest",
    "LookedAt",
    "Origin",
    "PageCode",
    "PageSession",
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
    "SessionRequest",
    "SettingChanges",
    "SettingInfo",
    "SettingList",
    "SiblingList",
    "SnapshotLine",
    "SnapshotRequest",
    "StacksRequest",
    "StepMark",
    "TableInfo",
    "TableList",
    "TargetInfo",
    "TargetList",
    "TaskStack",
    "TensorsLine",
    "TensorsRequest",
    "ThreadStack",
    "TicketMove",
    "TicketState",
    "WatchLine",
    "WatchRequest",
    "WorkerStack",
    "decode",
    "quoted",
    "shape",
    "suggest",
    "suggest_column",
    "suggest_table",
]

_HOMES = {
    "batch": (
        "BatchItem",
        "BatchRequest",
    ),
    "dashboard": (
        "CodeRequest",
        "JobAnswer",
        "JobQueryRequest",
        "PageCode",
        "PageSession",
        "SessionRequest",
    ),
    "decoding": ("decode",),
    "evaluation": (
        "CompletionRequest",
        "Completions",
        "EvalLine",
        "EvalRequest",
        "HoldRequest",
        "StepMark",
        "TicketMove",
        "TicketState",
        "WatchLine",
        "WatchRequest",
    ),
    "host": (
        "Cleaned",
        "CleanRequest",
        "HostClock",
        "Problem",
        "ProblemAnswer",
        "Removed",
    ),
    "job": (
        "ExtendTimeoutRequest",
        "GroupTimeout",
        "GroupTimeouts",
        "Launched",
        "LaunchedList",
        "Peer",
        "PeerList",
        "SiblingList",
    ),
    "memory": (
        "LeaksLine",
        "LeaksRequest",
        "SnapshotLine",
        "SnapshotRequest",
    ),
    "profile": (
        "CpuProfileRequest",
        "ProfileLine",
        "ProfileRequest",
    ),
    "query": (
        "QueryColumn",
        "QueryRequest",
        "QueryResult",
    ),
    "settings": (
        "SettingChanges",
        "SettingInfo",
        "SettingList",
    ),
    "stacks": (
        "Backtrace",
        "Frame",
        "StacksRequest",
        "TaskStack",
        "ThreadStack",
        "WorkerStack",
    ),
    "suggestions": (
        "suggest",
        "suggest_column",
        "suggest_table",
    ),
    "tables": (
        "ColumnInfo",
        "TableInfo",
        "TableList",
        "quoted",
        "shape",
    ),
    "target": (
        "Candidate",
        "Detached",
        "DetachRequest",
        "Health",
        "TargetInfo",
        "TargetList",
    ),
    "tensors": (
        "HuntLine",
        "HuntRequest",
        "LookedAt",
        "Origin",
        "TensorsLine",
        "TensorsRequest",
    ),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
