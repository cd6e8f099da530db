"""Equal stacks of many ranks, folded."""

from __future__ import annotations

from time import perf_counter

from probe_agent.wire import Backtrace, Frame, ThreadStack
from probe_cli.cluster.stacks import fold, threads_of
from probe_cli.render.stacks import branch_json, tree_lines


def stack(*calls: str) -> tuple[Frame, ...]:
    """Frames, innermost first, of `func:lineno` calls that are named outermost first."""
    named = [call.partition(":") for call in reversed(calls)]
    return tuple(
        Frame(func, f"{func}.py", int(lineno or 1), depth, "python", f"{func}()")
        for depth, (func, _, lineno) in enumerate(named)
    )


def test_equal_stacks_are_one_branch() -> None:
    (branch,) = fold((rank, "", stack("main", "fit", "step")) for rank in range(4))

    assert branch.ranks == (0, 1, 2, 3)
    assert [frame.func for frame in branch.frames] == ["main", "fit", "step"]
    assert branch.branches == ()


def test_the_one_that_is_elsewhere_is_a_branch_of_its_own_behind_the_many() -> None:
    late = stack("main", "fit", "load")

    tree = fold((rank, "", late if rank == 17 else stack("main", "fit", "wait", "recv")) for rank in range(63))
    lines = list(tree_lines(tree, colour=False))

    assert lines == [
        "63 ranks (0-62)",
        "│  main  main.py:1",
        "│  fit   fit.py:1",
        "│      fit()",
        "├─ 62 ranks (0-16,18-62)",
        "│     wait  wait.py:1",
        "│     recv  recv.py:1",
        "│         recv()",
        "└─ rank 17",
        "      load  load.py:1",
        "          load()",
    ]


def test_ranks_part_where_their_lines_differ() -> None:
    (branch,) = fold([(0, "", stack("main", "fit:10", "step")), (1, "", stack("main", "fit:11", "step"))])

    assert [frame.func for frame in branch.frames] == ["main"]
    assert [(one.ranks, one.frames[0].lineno) for one in branch.branches] == [((0,), 10), ((1,), 11)]
    assert [len(one.frames) for one in branch.branches] == [2, 2]


def test_a_rank_no_deeper_than_others_is_still_shown() -> None:
    tree = fold([(0, "", stack("main", "fit")), (1, "", stack("main", "fit", "step"))])

    assert [(one.ranks, len(one.frames)) for one in tree[0].branches] == [((0,), 0), ((1,), 1)]
    assert "├─ rank 0  (goes no deeper)" in list(tree_lines(tree, colour=False))


def test_a_qualified_name_and_a_plain_one_are_the_same_function() -> None:
    plain, qualified = Frame("fit", "a.py", 3, 0, "python", None), Frame("Trainer.fit", "a.py", 3, 0, "python", None)

    assert len(fold([(0, "", [plain]), (1, "", [qualified])])) == 1
    assert fold([(0, "", [plain]), (1, "", [qualified])])[0].branches == ()


def test_the_tree_as_json_names_every_rank() -> None:
    (branch,) = fold([(0, "worker", stack("main", "a")), (1, "worker", stack("main", "b"))])

    told = branch_json(branch)

    assert (told["ranks"], told["thread"]) == ([0, 1], "worker")
    assert told["frames"] == [{"func": "main", "file": "main.py", "lineno": 1, "source": "main()"}]
    assert [one["ranks"] for one in told["branches"]] == [[0], [1]]  # type: ignore[attr-defined, index]


def test_four_thousand_stacks_fold_at_once() -> None:
    common = [f"call{at}" for at in range(30)]
    stacks = [(rank, "", stack(*common, f"op{rank % 7}", f"leaf{rank % 49}")) for rank in range(4096)]

    began = perf_counter()
    (branch,) = fold(stacks)
    lines = list(tree_lines((branch,), colour=False))
    took_s = perf_counter() - began

    assert len(branch.ranks) == 4096
    assert [len(one.branches) for one in branch.branches] == [7] * 7
    assert len(lines) < 400
    assert took_s < 5  # 0.1 s here; a machine that is busy with other things takes longer


def thread(name: str, **roles: bool) -> ThreadStack:
    known = {"is_main": False, "is_training": False, "is_probe": False, **roles}
    return ThreadStack(name, 1, 1, frames=stack("main"), **known)


def test_the_training_thread_stands_for_its_rank_beside_the_one_that_holds_the_gil() -> None:
    main, trains = thread("MainThread", is_main=True), thread("T", is_training=True)
    holder = thread("C", holds_gil=True)

    def names(*threads: ThreadStack, all_threads: bool = False) -> list[str]:
        return [name for name, _ in threads_of(Backtrace(threads, "recorder", ()), all_threads=all_threads)]

    assert threads_of(Backtrace((main, trains), "recorder", ()), all_threads=False) == [("", trains)]
    assert threads_of(Backtrace((main, holder), "outside", ()), all_threads=False) == [
        ("", main),
        ("holds the GIL: C", holder),
    ]
    assert names(main, trains, thread("ours", is_probe=True), all_threads=True) == ["MainThread", "T"]


def test_a_rank_without_a_python_frame_is_in_the_tree_with_where_it_is() -> None:
    kernel = {"state": "sleeping", "syscall": "futex", "waits_in": "futex_wait_queue"}
    main = ThreadStack("MainThread", 0, 7, True, False, False, (), **kernel)

    ((name, thread),) = threads_of(Backtrace((main,), "outside", ()), all_threads=False)
    lines = list(tree_lines(fold([(3, name, thread.frames)]), False))

    assert lines == ["rank 3", "   (no Python frame; sleeping in futex (futex_wait_queue))"]
