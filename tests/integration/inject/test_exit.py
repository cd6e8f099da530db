"""A program that was attached to ends as it would have ended."""

from __future__ import annotations

import os
import subprocess

import pytest
from support.waiting import until

from probe_agent import inject

from .conftest import detach, installed_pythons
from .programs import program

#: Imports next to nothing, so that most of what the recorder needs is the recorder's alone.
COLLECTS = """
import sys
print("ready", flush=True)
sys.stdin.readline()
import gc
gc.collect()
sum(([] for _ in range(1000)), [])
"""


@pytest.mark.situation("attach, detach, and then it collects its garbage and ends", "ends well")
@pytest.mark.parametrize("python", installed_pythons(), ids=lambda python: python.split("/")[-3])
def test_a_program_that_has_collected_ends_well(python: str) -> None:
    codes = []
    for _ in range(2):
        with program(COLLECTS, python=python, stdin=subprocess.PIPE) as process:
            for _ in range(2):
                detach(inject.attach(process.pid))
            process.communicate("end\n", timeout=60)
        codes.append(process.returncode)

    assert codes == [0, 0]


#: Says how many functions, and registrations with the interpreter's own tables, there are that were not there before.
COUNTS = """
import copyreg, gc, sys
if sys.version_info >= (3, 12):
    import typing  # as all jobs with torch do: otherwise the recorder's stays with the job
def functions():
    gc.collect()
    return sum(type(one) is type(functions) for one in gc.get_objects())
kinds = set(copyreg.dispatch_table)
before = functions()
print("ready", flush=True)
for line in sys.stdin:
    # Python cannot take back what it calls after a fork: one function stays.
    print(functions() - before - 1, len(set(copyreg.dispatch_table) - kinds), flush=True)
"""


@pytest.mark.parametrize("python", installed_pythons(), ids=lambda python: python.split("/")[-3])
def test_a_collection_frees_all_functions_of_the_recorder(python: str) -> None:
    with program(COUNTS, python=python, stdin=subprocess.PIPE) as process:
        for _ in range(2):
            detach(inject.attach(process.pid))
        until(lambda: len(os.listdir(f"/proc/{process.pid}/task")) == 1)  # the recorder's thread holds what it runs
        output, _ = process.communicate("count\n", timeout=60)

    assert output.split()[-2:] == ["0", "0"]
