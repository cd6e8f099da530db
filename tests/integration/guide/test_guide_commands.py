"""Every command of the troubleshooting guide, as written there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .conftest import Shell

pytestmark = pytest.mark.torch


def test_backtrace_shows_the_training_loop(shell: Shell) -> None:
    shown = shell("probe $ENDPOINT backtrace").stdout

    assert "guide_trainer.py" in shown
    assert re.search(r"\bfit\b", shown)


def test_backtrace_is_a_table(shell: Shell) -> None:
    line = 'probe $ENDPOINT query "SELECT func, file, lineno, depth FROM python.backtrace ORDER BY depth LIMIT 10"'

    shown = shell(line).stdout

    header, _, *rows = shown.splitlines()
    assert header.split() == ["func", "file", "lineno", "depth"]
    assert [int(row.split()[-1]) for row in rows] == list(range(len(rows)))  # deep in torch, LIMIT 10 ends before fit
    assert 1 < len(rows) <= 10


def test_eval_lists_the_threads(shell: Shell) -> None:
    line = r'''probe $ENDPOINT eval "
import threading
for t in threading.enumerate():
    print(f'{t.name}: alive={t.is_alive()}')"'''

    shown = shell(line).stdout

    assert "MainThread: alive=True" in shown.splitlines()


def test_eval_reads_the_data_loader(shell: Shell) -> None:
    line = r'''probe $ENDPOINT eval "
import torch.utils.data
print(f'DataLoader workers: {train_loader.num_workers}')
print(f'Prefetch factor: {train_loader.prefetch_factor}')"'''

    shown = shell(line).stdout

    assert shown.splitlines()[:2] == ["DataLoader workers: 2", "Prefetch factor: 2"]


def test_eval_looks_for_bad_gradients(shell: Shell) -> None:
    line = r'''probe $ENDPOINT eval "
import torch
for name, param in model.named_parameters():
    if param.grad is not None:
        has_nan = torch.isnan(param.grad).any().item()
        has_inf = torch.isinf(param.grad).any().item()
        if has_nan or has_inf:
            print(f'{name}: NaN={has_nan}, Inf={has_inf}')"'''

    try:
        shown = shell(line).stdout
    except AssertionError as error:
        if "not NoneType" not in str(error):
            raise
        shown = shell(line).stdout  # the training had cleared a gradient between the two looks at it

    assert shown == ""


def test_eval_reads_the_gradient_clipping(shell: Shell) -> None:
    line = r'''probe $ENDPOINT eval "print(f'Grad clip value: {getattr(trainer, \"grad_clip\", None)}')"'''

    shown = shell(line).stdout

    assert shown == "Grad clip value: 1.0\n"


def test_eval_clips_the_gradients(shell: Shell) -> None:
    line = 'probe $ENDPOINT eval "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"'

    shown = shell(line).stdout

    assert re.match(r"tensor\(\d", shown)


def test_module_timings_are_there(shell: Shell) -> None:
    line = (
        'probe $ENDPOINT query "SELECT module, stage, COUNT(*) as count, AVG(duration) as avg_time, '
        "SUM(duration) as total_time FROM python.torch_trace WHERE step > (SELECT MAX(step) - 5 FROM "
        'python.torch_trace) GROUP BY module, stage ORDER BY total_time DESC LIMIT 10"'
    )
    shell(RECORDED)

    shown = shell(line).stdout

    assert re.search(r"module\W+stage\W+count\W+avg_time\W+total_time", shown)
    assert "forward" in shown


def test_memory_of_the_last_steps_is_there(shell: Shell) -> None:
    line = (
        'probe $ENDPOINT query "SELECT step, MAX(allocated) as peak_memory, MAX(allocated) - MIN(allocated) '
        "as memory_range FROM python.torch_trace WHERE step > (SELECT MAX(step) - 20 FROM "
        'python.torch_trace) GROUP BY step ORDER BY step"'
    )
    shell(RECORDED)

    shown = shell(line).stdout

    assert re.search(r"step\W+peak_memory\W+memory_range", shown)
    assert re.search(r"\d+\W+\d+\.\d+", shown)


def test_eval_frees_memory(shell: Shell) -> None:
    line = r'''probe $ENDPOINT eval "
import gc, torch
model.zero_grad(set_to_none=True)
gc.collect()
if torch.cuda.is_available():
    torch.cuda.empty_cache()
print('done')"'''

    shown = shell(line).stdout

    assert shown == "done\n"


def test_eval_saves_an_emergency_checkpoint(shell: Shell, folder: Path) -> None:
    import torch

    line = r'''probe $ENDPOINT eval "
import torch
torch.save({'step': trainer.current_step, 'model': model.state_dict(), 'optimizer': optimizer.state_dict()}, 'emergency_checkpoint.pt')
print('saved')"'''  # noqa: E501

    shown = shell(line).stdout
    saved = torch.load(folder / "emergency_checkpoint.pt")

    assert shown == "saved\n"
    assert saved["step"] >= 5
    assert set(saved["model"]) == {f"{i}.{kind}" for i in (0, 2, 4) for kind in ("weight", "bias")}


def test_eval_reads_then_changes_the_learning_rate(shell: Shell) -> None:
    read = r'''probe $ENDPOINT eval "
for i, pg in enumerate(optimizer.param_groups):
    print(f'Group {i}: lr={pg[\"lr\"]}, weight_decay={pg.get(\"weight_decay\", 0)}')"'''
    change = r'''probe $ENDPOINT eval "
for pg in optimizer.param_groups:
    pg['lr'] *= 0.1
print(f'new learning rate: {optimizer.param_groups[0][\"lr\"]}')"'''

    before = shell(read).stdout
    changed = shell(change).stdout
    after = shell(read).stdout

    assert before == "Group 0: lr=0.001, weight_decay=0.01\n"
    assert changed == "new learning rate: 0.0001\n"
    assert after == "Group 0: lr=0.0001, weight_decay=0.01\n"


def test_a_target_can_be_named_with_t(shell: Shell, endpoint: str) -> None:
    line = r'''probe -t 127.0.0.1:8080 eval "print(f'Rank 0 step: {trainer.current_step}')"'''

    shown = shell(line.replace("127.0.0.1:8080", endpoint)).stdout

    assert re.fullmatch(r"Rank 0 step: \d+\n", shown)


#: Waits in the target until one step in 20 has been recorded.
RECORDED = r'''probe $ENDPOINT eval --timeout 20 "
import time
wanted = trainer.current_step + 41
while trainer.current_step < wanted:
    time.sleep(0.01)"'''
