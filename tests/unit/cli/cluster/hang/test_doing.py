"""What a rank does, told by stacks as torch and the standard library have them."""

from __future__ import annotations

import pytest

from probe_agent.wire import Backtrace, Frame, ThreadStack
from probe_cli.cluster.hang.doing import Activity, doing, has_moved

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
LIB = "/usr/lib/python3.11"
JOB = Frame("train", "/home/me/train.py", 88, 9, "python", "    loss = step(batch)")


def stacks(*frames: tuple[str, str, str], job: Frame = JOB, source: str = "outside", gil: bool = False) -> Backtrace:
    """Innermost first; each is function, file, and the text of the line."""
    made = tuple(
        Frame(func, file, 10 + depth, depth, "python", line) for depth, (func, file, line) in enumerate(frames)
    )
    thread = ThreadStack("MainThread", 1, 1, True, True, False, (*made, job), holds_gil=gil)
    return Backtrace((thread,), source, ())


@pytest.mark.parametrize(
    ("frames", "activity"),
    [
        ([("all_reduce", f"{TORCH}/distributed/distributed_c10d.py", "work.wait()")], Activity.COLLECTIVE),
        ([("init_process_group", f"{TORCH}/distributed/distributed_c10d.py", "")], Activity.INIT),
        (
            [
                ("_tcp_rendezvous_handler", f"{TORCH}/distributed/rendezvous.py", "store = _create_c10d_store("),
                ("init_process_group", f"{TORCH}/distributed/distributed_c10d.py", ""),
            ],
            Activity.INIT,
        ),
        ([("destroy_process_group", f"{TORCH}/distributed/distributed_c10d.py", "")], Activity.DESTROY),
        (
            [
                ("wait", f"{LIB}/threading.py", "waiter.acquire()"),
                ("get", f"{LIB}/queue.py", "self.not_empty.wait(remaining)"),
                ("_try_get_data", f"{TORCH}/utils/data/dataloader.py", "data = self._data_queue.get(timeout=timeout)"),
            ],
            Activity.DATA,
        ),
        (
            [
                ("_save", f"{TORCH}/serialization.py", "zip_file.write_record(name, storage, num_bytes)"),
                ("save", f"{TORCH}/serialization.py", "_save("),
            ],
            Activity.SAVE,
        ),
        ([("save_state_dict", f"{TORCH}/distributed/checkpoint/state_dict_saver.py", "")], Activity.SAVE),
        ([("load", f"{TORCH}/distributed/checkpoint/state_dict_loader.py", "")], Activity.LOAD),
        ([("load", f"{TORCH}/serialization.py", "")], Activity.LOAD),
        ([("compile_inner", f"{TORCH}/_dynamo/convert_frame.py", "")], Activity.COMPILE),
        ([("get", f"{LIB}/queue.py", "self.not_empty.wait()")], Activity.QUEUE),
        ([("join", f"{LIB}/threading.py", "self._wait_for_tstate_lock()")], Activity.JOIN),
        ([("_wait", f"{LIB}/subprocess.py", "(pid, sts) = self._try_wait(0)")], Activity.CHILD),
        ([("pause", "/home/me/train.py", "    time.sleep(3600)")], Activity.SLEEP),
        ([("update", "/home/me/train.py", "    with self.lock:")], Activity.LOCK),
        ([("update", "/home/me/train.py", "    lock.acquire()")], Activity.LOCK),
        ([("fetch", "/home/me/train.py", "    os.read(reader, 1)")], Activity.READ),
        ([("exchange", "/home/me/train.py", "    request.wait()")], Activity.COLLECTIVE),
        ([("fetch", "/home/me/train.py", "    os.waitpid(pid, 0)")], Activity.CHILD),
        ([("recv_into", f"{LIB}/socket.py", "return self._sock.recv_into(b)")], Activity.READ),
        (
            [
                ("wait", f"{LIB}/threading.py", "waiter.acquire()"),
                ("wait", f"{LIB}/threading.py", "signaled = self._cond.wait(timeout)"),
            ],
            Activity.EVENT,
        ),
        (
            [
                ("wait", f"{LIB}/threading.py", "waiter.acquire()"),
                ("result", f"{LIB}/concurrent/futures/_base.py", "self._condition.wait(timeout)"),
            ],
            Activity.FUTURE,
        ),
        (
            [
                ("wait", f"{LIB}/threading.py", "waiter.acquire()"),
                ("map", f"{LIB}/multiprocessing/pool.py", "return self._map_async(func, iterable).get()"),
            ],
            Activity.CHILD,
        ),
        (
            [
                ("_recv", f"{LIB}/multiprocessing/connection.py", "chunk = read(handle, remaining)"),
                ("get", f"{LIB}/multiprocessing/queues.py", "res = self._recv_bytes()"),
            ],
            Activity.QUEUE,
        ),
        (
            [
                ("select", f"{LIB}/selectors.py", "fd_event_list = self._selector.poll(timeout, max_ev)"),
                ("_run_once", f"{LIB}/asyncio/base_events.py", "event_list = self._selector.select(timeout)"),
                ("run", f"{LIB}/asyncio/runners.py", "return runner.run(main)"),
            ],
            Activity.LOOP,
        ),
        (
            [
                ("cmdloop", f"{LIB}/cmd.py", "line = input(self.prompt)"),
                ("trace_dispatch", f"{LIB}/bdb.py", "return self.dispatch_line(frame)"),
            ],
            Activity.DEBUGGER,
        ),
        ([("ask", "/home/me/train.py", '    if input("go on? ") == "y":')], Activity.INPUT),
        ([("acquire", "/opt/venv/lib/python3.11/site-packages/filelock/_api.py", "time.sleep(1)")], Activity.FILE_LOCK),
        ([("forward", "/home/me/model.py", "    return self.linear(x)")], Activity.PYTHON),
    ],
)
def test_what_the_job_has_called_decides(frames: list[tuple[str, str, str]], activity: Activity) -> None:
    assert doing(stacks(*frames)).activity is activity


def test_the_line_is_the_innermost_of_the_job() -> None:
    done = doing(stacks(("all_reduce", f"{TORCH}/distributed/distributed_c10d.py", "work.wait()")))

    assert str(done) == "is in all_reduce in train (train.py:88)"


def test_a_data_set_of_the_job_is_told_with_the_loader_that_called_it() -> None:
    done = doing(
        stacks(
            ("__getitem__", "/home/me/data.py", "    time.sleep(60)"),
            ("fetch", f"{TORCH}/utils/data/_utils/fetch.py", "data = [self.dataset[idx] for idx in possibly_batched]"),
            ("_next_data", f"{TORCH}/utils/data/dataloader.py", "data = self._dataset_fetcher.fetch(index)"),
        )
    )

    assert (done.activity, done.within) == (Activity.SLEEP, Activity.DATA)
    assert str(done) == "sleeps in __getitem__ (data.py:10), called while it waits for its data loader"


def test_whatever_a_part_of_saving_or_loading_does_may_take_long() -> None:
    retries = ("write", "/home/me/storage.py", "    time.sleep(30)")
    saves = doing(stacks(retries, ("save", f"{TORCH}/serialization.py", "_save(")))

    assert (saves.activity, saves.takes_long) == (Activity.SLEEP, True)
    assert not doing(stacks(retries)).takes_long


def test_what_the_kernel_says_of_the_process_comes_first() -> None:
    assert doing(stacks(("pause", "/home/me/train.py", "time.sleep(1)")), state="stopped").activity is Activity.STOPPED


def test_who_holds_the_gil_of_a_silent_recorder_keeps_it() -> None:
    held = stacks(("hold", "/home/me/train.py", "    lib.sleep(3600)"), gil=True)

    assert doing(held).activity is Activity.SLEEP
    assert doing(held, is_silent=True).activity is Activity.GIL


def test_without_a_stack_nothing_is_claimed() -> None:
    assert doing(None).activity is Activity.UNKNOWN


def test_a_loop_in_one_function_has_not_moved_and_another_call_has() -> None:
    here = stacks(("spin", "/home/me/train.py", "while True:"))
    there = stacks(("forward", "/home/me/model.py", "x = x + 1"))
    later = stacks(
        ("spin", "/home/me/train.py", "pass"), job=Frame("train", "/home/me/train.py", 89, 9, "python", "again()")
    )

    assert has_moved(here, here) is False
    assert has_moved(here, there) is True
    assert has_moved(here, later) is True
    assert has_moved(here, None) is None
