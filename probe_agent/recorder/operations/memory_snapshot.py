"""Snapshot of torch's CUDA allocator in torch's own format, for `probe … memory --snapshot FILE`.

torch lists its blocks on a thread of the recorder, some ms to 0.1 s during which a thread that allocates waits; nothing
waits for the device and none of its memory is taken.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from ..control.reply import Reply
from ..source import Recorder
from ..torch import loaded

__all__ = ["stream"]

CHUNK_BYTES = 768 << 10
_NOT_USED = {
    "message": "this target uses no CUDA device through torch, so its allocator has nothing to show",
    "hint": "for CPU memory: probe … memory; for the lines that leak: probe … memory --leaks",
}


def stream(recorder: Recorder, request: Mapping[str, Any], reply: Reply) -> Mapping[str, object]:
    """Send the pickled snapshot in pieces."""
    torch: Any = loaded("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {"error": _NOT_USED}
    pickle: Any = loaded("pickle")  # as torch has it
    data = pickle.dumps(torch.cuda.memory._snapshot())
    for at in range(0, len(data), CHUNK_BYTES):
        reply.send({"data": base64.b64encode(data[at : at + CHUNK_BYTES]).decode("ascii")})
    return {"state": "finished"}
