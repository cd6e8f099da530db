"""Pipeline stages that this rank runs; torch.distributed.pipelining keeps no register of them.

Runs on the training thread, 0.2 µs per micro-batch, until all stages have had time to run.
"""

from __future__ import annotations

import sys
from time import monotonic
from typing import Any

from ..source import Recorder
from ..source import Source as BaseSource
from ..torch.patches import Patches

__all__ = ["Source"]

_MODULE = "torch.distributed.pipelining.stage"
#: Time after the first stage by which all stages of a rank have run.
LOOK_S = 60.0


class Source(BaseSource):
    name = "stages"
    needs = ("torch", _MODULE)

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._patches = Patches()
        self._until = 0.0

    def start(self) -> None:
        self._patches.wrap(sys.modules[_MODULE]._PipelineStageBase, "forward_one_chunk", self._noting)

    def tick(self) -> None:
        if self.recorder.seen.stages and not self._until:
            self._until = monotonic() + LOOK_S
        if self._until and monotonic() > self._until:
            self._patches.restore()

    def stop(self) -> None:
        self._patches.restore()

    def _noting(self, original: Any) -> Any:
        stages = self.recorder.seen.stages

        def forward_one_chunk(stage: Any, *args: Any, **kwargs: Any) -> Any:
            if stage.stage_index not in stages:
                stages[stage.stage_index] = (stage.group_rank, stage.group_size, stage.num_stages)
            return original(stage, *args, **kwargs)

        return forward_one_chunk
