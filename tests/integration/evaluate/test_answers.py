"""Streaming, cancelling, at-step code and completion."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable

import pytest

from .conftest import Answer, Target, lines

Start = Callable[..., Target]


@pytest.fixture
def target(start: Start) -> Target:
    return start(sys.executable, "eval_loop.py")


def test_output_arrives_while_the_code_runs(target: Target) -> None:
    code = "import time\nprint('first', flush=True)\nwhile not getattr(trainer, 'go', False):\n    time.sleep(0.01)"
    with target.connect() as connection:
        connection.sendall(json.dumps({"op": "eval", "code": code}).encode() + b"\n")
        answer = lines(connection)

        early = [line for line in (next(answer) for _ in range(2)) if "stream" in line]
        target.eval("trainer.go = True")
        last = list(answer)[-1]

    assert early[0]["text"] == "first\n"
    assert last["state"] == "finished"


@pytest.mark.parametrize("by", ["line", "hanging up"])
def test_cancelling_stops_the_code_in_the_target(target: Target, by: str) -> None:
    code = "import time\ntrainer.beats = 0\nprint('runs')\nwhile True:\n    trainer.beats += 1\n    time.sleep(0.001)"
    with target.connect() as connection:
        connection.sendall(json.dumps({"op": "eval", "code": code}).encode() + b"\n")
        answer = lines(connection)
        while next(answer).get("text") != "runs\n":
            pass

        if by == "line":
            connection.sendall(b'{"op": "cancel"}\n')
            assert list(answer)[-1]["state"] == "cancelled"
        answer.close()  # type: ignore[attr-defined]  # the file in it would keep the connection open

    deadline = time.monotonic() + 10
    while target.eval("import time\na = trainer.beats\ntime.sleep(0.1)\ntrainer.beats - a").result != "0":
        assert time.monotonic() < deadline


def test_a_client_that_only_half_closes_still_gets_its_answer(target: Target) -> None:
    with target.connect() as connection:
        connection.sendall(b'{"op": "eval", "code": "import time; time.sleep(0.2); 7"}\n')
        connection.shutdown(1)

        answer = Answer(list(lines(connection)))

    assert (answer.state, answer.result) == ("finished", "7")


def test_code_stuck_outside_python_is_reported_in_time(target: Target) -> None:
    began = time.monotonic()

    answer = target.eval("import time\ntime.sleep(3)", timeout=0.2)

    assert time.monotonic() - began < 2.9  # before the code itself ends
    assert answer.state == "timed out"
    assert "still running" in answer.notes[0]
    assert ":2" in answer.notes[0]


def test_stacks_answer_while_an_eval_runs(target: Target) -> None:
    with target.connect() as connection:
        connection.sendall(b'{"op": "eval", "code": "while True: pass"}\n')

        began = time.monotonic()
        threads = target.ask("stacks", all=True)[-1]["threads"]

    assert time.monotonic() - began < 10  # the code never ends
    assert threads[0]["is_main"]


def test_at_step_code_runs_on_the_training_thread(target: Target) -> None:
    answer = target.eval("import threading\ntrainer.grad_clip = 7\nthreading.current_thread().name", at_step=True)

    assert answer.result == "'MainThread'"
    assert target.eval("trainer.grad_clip").result == "7"


def test_at_step_code_that_no_step_comes_for_is_withdrawn(start: Start) -> None:
    target = start(sys.executable, "eval_loop.py", NO_STEPS_AFTER="3")
    while target.eval("trainer.current_step").result != "3":
        pass
    while target.eval("0", at_step=True, timeout=0.1).state == "finished":
        pass  # the third step has not quite ended

    answer = target.eval("trainer.ran = True", at_step=True, timeout=0.3)

    assert answer.state == "timed out"
    (note,) = answer.notes
    told = re.fullmatch(r"no step ended within ([\d.]+) s; the last step was step 3; the code did not run", note)
    assert told
    assert float(told[1]) >= 0.3  # how long it really was
    assert target.eval("hasattr(trainer, 'ran')").result == "False"


def test_ctrl_c_during_at_step_code_still_interrupts_the_job(start: Start) -> None:
    target = start(sys.executable, "eval_loop.py")
    code = "import time\nprint('runs')\nfor _ in range(1000):\n    time.sleep(0.005)"
    with target.connect() as connection:
        connection.sendall(json.dumps({"op": "eval", "code": code, "at_step": True}).encode() + b"\n")
        answer = lines(connection)
        while next(answer).get("text") != "runs\n":
            pass

        os.kill(target.process.pid, signal.SIGINT)
    _, err = target.process.communicate(timeout=60)

    assert err.rstrip().endswith("KeyboardInterrupt")


def test_a_session_keeps_assignments_and_the_last_value(target: Target) -> None:
    target.eval("x = 20", session="one")
    target.eval("x + 2", session="one")

    assert target.eval("_ * 2", session="one").result == "44"
    assert target.eval("x", session="two").state == "failed"


def test_assigning_a_name_of_the_job_says_that_the_job_keeps_its_own(target: Target) -> None:
    answer = target.eval("scale *= 2\nscale")

    assert answer.result == "20"
    assert answer.notes == ["scale: assigned here only, the job's own scale is unchanged"]
    assert target.eval("scale").result == "10"


def test_a_long_result_is_cut_and_says_so(target: Target) -> None:
    answer = target.eval("'x' * 200_000")

    assert len(answer.result) == 64 << 10
    assert "200,002 characters" in answer.notes[0]


def test_errors_in_earlier_code_of_a_session_show_their_own_source(target: Target) -> None:
    target.eval("def fail():\n    raise ValueError('early')", session="s")

    answer = target.eval("# another line\n# and another\nfail()", session="s")

    assert 'File "<eval>", line 3, in <module>\n    fail()' in answer.traceback
    assert "line 2, in fail\n    raise ValueError('early')" in answer.traceback


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("trainer.cur", ["trainer.current_step"]),
        ("for x in trainer.grad", ["trainer.grad_clip"]),
        ("trainer.nothing", []),
        ("nobody.at", []),
        ("Bat", ["Batch"]),
    ],
)
def test_completion_knows_the_names_of_the_job(target: Target, text: str, expected: list[str]) -> None:
    assert target.ask("complete", text=text)[-1] == {"matches": expected, "done": True}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"no json\n", "bad request: "),
        (b"[1]\n", "bad request: expected a JSON object, not a list"),
        (b'{"op": "nix"}\n', "unknown operation 'nix'"),
        (b'{"op": "break"}\n', "the recorder failed at break: ZeroDivisionError"),
        (b'{"op": "eval"}\n', "missing `code`"),
        (b'{"op": "eval", "code": "1", "timeout": -1}\n', "invalid timeout -1"),
        (b"[" * 200_000 + b"\n", "bad request: "),
    ],
)
def test_a_bad_request_gets_an_error_answer(target: Target, line: bytes, message: str) -> None:
    with target.connect() as connection:
        connection.sendall(line)

        answer = next(lines(connection))

    assert answer["done"]
    assert answer["error"]["message"].startswith(message)


def test_a_flood_of_output_does_not_pile_up_in_the_target(target: Target) -> None:
    answer = target.eval("for _ in range(30):\n    print('x' * 99_999)")
    cut = target.eval("for _ in range(30):\n    print('x' * 99_999)", at_step=True)

    assert len(answer.stdout) == 3_000_000
    assert cut.state == "finished"
    assert len(cut.stdout) == 3_000_000 or "characters of output were lost" in cut.notes[-1]


def test_a_process_that_at_step_code_forks_prints_to_the_streams_of_the_job(target: Target) -> None:
    code = (
        "import os\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    print('from the child', flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)[1]"
    )

    answer = target.eval(code, at_step=True)
    after = target.eval("trainer.current_step")
    out, err = target.finish()

    assert (answer.result, answer.stdout, after.state) == ("0", "", "finished")
    assert out.splitlines()[0] == "from the child"
    assert err == ""
