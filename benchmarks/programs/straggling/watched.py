"""The DDP job with TraceML's step boundaries and timed sections for NVRx's scores.

NVRx's Detector needs CUDA (its CUPTI module, and a report synchronises the device); its sections are wall-clock times,
so they are taken here and given to its ReportGenerator.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from parts import Net, batches, sgd
from planted import Planted
from torch.nn.parallel import DistributedDataParallel

__all__ = ["watched"]


class Sections:
    def __init__(self) -> None:
        self.times: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.times[name].append(time.perf_counter() - began)


def watched(planted: Planted) -> None:
    import traceml_ai as traceml

    traceml.init(mode="auto")

    model = DistributedDataParallel(Net(planted))
    optimizer = sgd(planted, model.parameters())
    data = batches(planted)
    sections = Sections()
    planted.returns = True
    while not planted.is_over:
        with sections.timed("data"):
            batch = next(data)
        with traceml.trace_step(model):
            optimizer.zero_grad()
            with sections.timed("forward"):
                loss = model(batch).square().mean()
            with sections.timed("backward"):
                loss.backward()
            with sections.timed("optimizer"):
                optimizer.step()
        with sections.timed("after"):
            planted.pause("after")
        if planted.number < planted.begin:
            sections.times.clear()
        planted.step_ends()
    _report(planted, sections.times)


def _report(planted: Planted, times: dict[str, list[float]]) -> None:
    from nvidia_resiliency_ext.straggler.reporting import ReportGenerator
    from nvidia_resiliency_ext.straggler.statistics import Statistic

    summaries = {
        name: {Statistic.MED: float(torch.tensor(values).median()), Statistic.NUM: len(values)}
        for name, values in times.items()
    }
    generator = ReportGenerator(["relative_perf_scores"], gather_on_rank0=True, node_name="node")
    report = generator.generate_report(summaries, {})
    if planted.rank == 0:
        found = report.identify_stragglers()["straggler_sections_relative"]
        named = {section: sorted(each.rank for each in ranks) for section, ranks in found.items()}
        told = {"named": named, "scores": report.section_relative_perf_scores}
        (planted.folder / "nvrx.json").write_text(json.dumps(told))
