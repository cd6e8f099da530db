"""The verdict on a job, from two looks at its ranks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import pytest

from probe_agent.wire import Backtrace, Frame, TargetInfo, ThreadStack
from probe_cli.cluster.hang.details import Details
from probe_cli.cluster.hang.looks import Look, Pace
from probe_cli.cluster.hang.peers import Peer
from probe_cli.cluster.hang.verdict import State, Verdict, judge

RANKS = (0, 1, 2, 3)
GROUPS = {"0": ("default_pg", RANKS)}


def target(rank: int, **more: object) -> TargetInfo:
    made = TargetInfo(
        100 + rank, rank, rank, 4, "node1", 0, True, "sleeping", 20, 30.0, 60.0, ("train.py",), "3.11", "2.13", "0.1",
        "planned", 0.0, "/dev/shm/x",
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]  # fields of TargetInfo


def stack(*frames: Frame) -> Backtrace:
    """The stack of a training thread, innermost frame first, as read from outside."""
    return Backtrace((ThreadStack("MainThread", 1, 1, True, True, False, frames),), "outside", ())


def at(line: str, func: str = "train") -> Backtrace:
    return stack(Frame(func, "/home/me/train.py", 88, 0, "python", line))


def rank_look(seq: int, waits: bool, stood_s: float, stacks: Backtrace) -> Look:
    """A rank that has come to call `seq`, and has not got on for `stood_s`."""
    call = ("0", "all_reduce", seq, stood_s, "scheduled", "[4]", "float32", 16, 1800.0, False)
    return Look(
        20,
        Pace(stood_s, 0.1, 0.3, 20),
        None,
        1_000_000.0,
        stood_s,
        GROUPS,
        {"0": seq},
        (),
        (call,) if waits else (),
        stacks,
    )


def looks(stood_s: float, culprit: int | None, line: str = "x.backward()", func: str = "train") -> dict[int, Look]:
    return {
        rank: rank_look(40, False, stood_s, at(line, func))
        if rank == culprit
        else rank_look(41, True, stood_s, at("dist.all_reduce(x)"))
        for rank in RANKS
    }


def verdict(before: Mapping[int, Look], after: Mapping[int, Look], **targets: TargetInfo) -> Verdict:
    known = {rank: targets.get(f"rank{rank}", target(rank)) for rank in RANKS}
    return judge(known, before, after, between_s=2.0, missing=set(RANKS) - set(after))


def test_the_rank_that_has_not_come_is_named_with_what_it_does() -> None:
    seen = looks(60.0, 2, "time.sleep(3600)")

    said = verdict(seen, seen)

    assert (said.state, said.ranks, said.cause) == (State.HANGS, (2,), "absent")
    assert "rank 2 has not come to all_reduce 41 of group default_pg (0)" in said.sentence
    assert "rank 2 sleeps in train (train.py:88)" in said.sentence
    assert said.aborts_in_s == pytest.approx(1740.0)


JOINS = stack(
    Frame("new_group", "/x/site-packages/torch/distributed/distributed_c10d.py", 5, 0, "python", ""),
    Frame("setup", "/home/me/train.py", 48, 1, "python", "group = dist.new_group()"),
)


def test_ranks_that_join_a_group_hang_at_once_if_all_others_wait_in_calls_for_them() -> None:
    seen = {
        rank: rank_look(40, False, 30.0, JOINS) if rank < 2 else rank_look(41, True, 30.0, at("x")) for rank in RANKS
    }

    said = verdict(seen, seen)
    one_unseen = verdict({rank: seen[rank] for rank in (0, 1, 2)}, {rank: seen[rank] for rank in (0, 1, 2)})

    assert (said.state, said.ranks) == (State.HANGS, (0, 1))
    assert "rank 0 waits to join a process group (new_group) in setup (train.py:48)" in said.sentence
    assert one_unseen.state is not State.HANGS


def test_ranks_that_are_still_in_a_call_that_others_have_ended_are_told_with_it() -> None:
    def call(op: str, seq: int) -> tuple[object, ...]:
        return ("0", op, seq, 60.0, "scheduled", "[4]", "float32", 16, 1800.0, False)

    seen = looks(60.0, None)
    for rank in RANKS:
        ahead = call("all_reduce", 41) if rank % 2 else call("broadcast", 40)
        seen[rank] = replace(seen[rank], come={"0": 40 + rank % 2}, recorded=(ahead,))

    said = verdict(seen, seen)

    assert (said.state, said.ranks) == (State.HANGS, (0, 2))
    assert "ranks 0,2 have not come to all_reduce 41" in said.sentence
    assert "ranks 0,2 are still in broadcast 40 of group default_pg (0), which the others have ended" in said.sentence
    assert "they may differ in its root" in said.sentence


@pytest.mark.parametrize("stood_s", [0.5, 5.0])
def test_a_moment_is_no_hang(stood_s: float) -> None:
    seen = looks(stood_s, 2)

    assert verdict(seen, seen).state is State.NONE


def test_a_step_between_the_looks_is_no_hang() -> None:
    before = looks(60.0, 2)
    after = {rank: replace(seen, step=21) for rank, seen in before.items()}

    said = verdict(before, after)

    assert (said.state, said.ranks) == (State.NONE, ())
    assert "from step 20 to 21" in said.sentence


@pytest.mark.parametrize(("stood_s", "state"), [(60.0, State.SLOW), (200.0, State.HANGS)])
def test_a_rank_that_works_is_given_time(stood_s: float, state: State) -> None:
    before, after = looks(stood_s, 2), looks(stood_s, 2, func="evaluate")

    assert verdict(before, after).state is state


def test_a_stopped_rank_is_the_cause_wherever_it_is() -> None:
    seen = looks(60.0, None)

    said = verdict(seen, seen, rank1=target(1, state="stopped"))

    assert (said.state, said.ranks) == (State.HANGS, (1,))
    assert "kill -CONT 101" in said.sentence


def test_a_rank_that_has_ended_is_the_cause() -> None:
    seen = looks(60.0, None)

    said = verdict(seen, seen, rank3=target(3, alive=False, ended="was killed by SIGKILL", ended_badly=True))

    assert (said.state, said.ranks) == (State.HANGS, (3,))
    assert "it was killed by SIGKILL" in said.sentence


def test_ranks_of_which_nothing_is_known_are_not_blamed_with_certainty() -> None:
    seen = {rank: look for rank, look in looks(60.0, None).items() if rank != 1}

    said = verdict(seen, seen)

    assert said.state is State.UNKNOWN
    assert "nothing is known of rank 1" in said.sentence


@pytest.mark.parametrize(
    ("unseen", "state", "ranks"), [((1, 3), State.HANGS, (2,)), ((1, 2, 3), State.UNKNOWN, (1, 2, 3))]
)
def test_a_rank_that_shows_no_stack_may_be_in_the_call_by_now(
    unseen: tuple[int, ...], state: State, ranks: tuple[int, ...]
) -> None:
    """It aborts, say, and the connection that the others lose has not told them yet."""
    seen = {0: rank_look(41, True, 60.0, at("dist.all_reduce(x)"))}
    seen |= {rank: rank_look(40, False, 60.0, at("time.sleep(3600)")) for rank in RANKS[1:]}
    seen |= {rank: replace(seen[rank], stacks=None, gaps=("it did not answer",)) for rank in unseen}

    said = verdict(seen, seen)

    assert (said.state, said.ranks) == (state, ranks)


def test_without_a_step_or_a_call_nobody_says_how_long_is_long() -> None:
    nothing = {"steps": None, "step": None, "newest_call": None, "newest_call_age": None}
    blind = {rank: replace(seen, **nothing) for rank, seen in looks(60.0, 2).items()}  # type: ignore[arg-type]

    assert verdict(blind, blind).state is State.UNKNOWN


@pytest.mark.parametrize(
    ("stack", "watched_s", "state"),
    [
        ("dist.recv(x)", 70.0, State.HANGS),
        ("dist.recv(x)", 30.0, State.UNKNOWN),  # it may be a long step
        ("loss.backward()", 70.0, State.UNKNOWN),  # one of them may compute
    ],
)
def test_ranks_that_are_all_in_calls_from_before_the_recorder_came_hang_after_a_minute(
    stack: str, watched_s: float, state: State
) -> None:
    """Each receives in a pipeline, say, and nobody sends: no call that they have come to is recorded."""
    receives = Frame("recv", "/x/site-packages/torch/distributed/distributed_c10d.py", 5, 0, "python", "")
    in_call = at("dist.recv(x)")
    waiting = replace(in_call, threads=(replace(in_call.threads[0], frames=(receives, *in_call.threads[0].frames)),))
    seen = {rank: Look(stacks=waiting if rank < 3 or "recv" in stack else at(stack)) for rank in RANKS}
    targets = {rank: target(rank, attached_at=1000.0) for rank in RANKS}

    said = judge(targets, seen, seen, between_s=2.0, now=1000.0 + watched_s)

    assert said.state is state
    assert said.stands_s == (watched_s if state is State.HANGS else None)


@pytest.mark.parametrize(
    ("peers", "asleep_s", "state", "ranks"),
    [
        (("recv", 3), 30.0, State.HANGS, (0, 3)),
        (("recv", 3), 4.0, State.UNKNOWN, (0, 3)),  # it may be about to go on
        (("recv", 1), 30.0, State.UNKNOWN, ()),  # whose send is the answer: the network, or a moment
    ],
)
def test_ranks_that_wait_for_each_other_in_receives_are_a_deadlock_soon(
    peers: tuple[str, int], asleep_s: float, state: State, ranks: tuple[int, ...]
) -> None:
    """As the stacks tell: rank 0 serves the others, and waits for the one that never sent."""
    receives = Frame("recv", "/x/site-packages/torch/distributed/distributed_c10d.py", 5, 0, "python", "")
    waiting = stack(receives, Frame("pull", "/home/me/train.py", 88, 1, "python", "dist.recv(x)"))
    seen = {
        rank: Look(stacks=waiting, groups=GROUPS, peer=Peer("recv", 0, None) if rank else Peer(*peers, None))
        for rank in RANKS
    }
    seen[1] = replace(seen[1], peer=Peer("send" if peers[1] == 1 else "recv", 0, None))
    targets = {rank: target(rank, attached_at=1000.0, asleep={"1": asleep_s}) for rank in RANKS}

    said = judge(targets, seen, seen, between_s=2.0, now=1001.0)

    assert (said.state, said.ranks) == (state, ranks)


@pytest.mark.parametrize(
    ("before_s", "line", "has_trained", "state", "stands_s"),
    [
        (400.0, "batch = batches.get()", True, State.HANGS, 410.0),
        (100.0, "batch = batches.get()", True, State.UNKNOWN, 110.0),  # rollouts may take so long: it may go on
        (400.0, "batch = batches.get()", False, State.UNKNOWN, None),  # a server without requests
        (400.0, 'text = input("> ")', True, State.UNKNOWN, 0.0),
        (None, "batch = batches.get()", True, State.UNKNOWN, 0.0),
    ],
)
def test_a_process_that_stood_still_before_the_recorder_came_hangs_if_it_has_trained(
    before_s: float | None, line: str, has_trained: bool, state: State, stands_s: float | None
) -> None:
    seen = {0: Look(stacks=at(line))}
    one = target(0, world_size=1, attached_at=1000.0, asleep={} if before_s is None else {"1": before_s})

    said = judge({0: one}, seen, seen, between_s=2.0, details={0: Details(has_trained=has_trained)}, now=1010.0)

    assert said.state is state
    assert said.stands_s == stands_s
    assert ("its training thread has not run for 410 s" in said.sentence) is (state is State.HANGS)


def test_a_deadlock_needs_no_time() -> None:
    seen = {0: Look(stacks=at("with lock:"))}
    held = Details(("other is held by its thread logger, …: a deadlock",), is_deadlock=True)

    said = judge({0: target(0, world_size=1)}, seen, seen, between_s=2.0, details={0: held})

    assert (said.state, said.ranks) == (State.HANGS, (0,))


@pytest.mark.parametrize(
    ("ages", "gap", "num", "state"),
    [
        ((60.0, 45.0, 60.0, 60.0), 0.2, 500, State.HANGS),
        ((60.0, 1.0, 60.0, 60.0), 0.2, 500, State.NONE),  # one of them still calls
        ((60.0, 45.0, 60.0, 60.0), 30.0, 500, State.NONE),  # it has paused for as long before
        ((60.0, 45.0, 60.0, 60.0), 0.2, 3, State.NONE),  # it may have just begun
        ((75.0,) * 4, 0.2, 3, State.HANGS),  # and yet a rank that sleeps does not go on
    ],
)
def test_without_steps_flight_recorder_tells_how_long_the_job_usually_takes(
    ages: tuple[float, ...], gap: float, num: int, state: State
) -> None:
    seen = {
        rank: replace(
            look, steps=None, step=None, newest_call=None, newest_call_age=None, calls=Pace(ages[rank], 0.0, gap, num)
        )
        for rank, look in looks(60.0, 2, "time.sleep(60)").items()
    }

    assert verdict(seen, seen).state is state


@pytest.mark.parametrize(("line", "state"), [("x = layers(x)", State.NONE), ("time.sleep(60)", State.HANGS)])
def test_in_its_first_step_a_job_has_time_to_compute_and_none_to_sleep(line: str, state: State) -> None:
    early = {
        "steps": None,
        "step": None,
        "newest_call": None,
        "newest_call_age": None,
        "calls": Pace(90.0, 0.0, 0.2, 3),
    }
    seen = {rank: replace(look, **early) for rank, look in looks(60.0, 2, line).items()}  # type: ignore[arg-type]
    kernel = "running" if state is State.NONE else "sleeping"
    there = replace(seen[2], stacks=Backtrace((replace(at(line).threads[0], state=kernel),), "outside", ()))

    said = verdict(seen, seen | {2: there})

    assert said.state is state
    assert "rank 2 has not come to all_reduce 41" in said.sentence


def test_in_a_pipeline_the_rank_that_does_not_send_is_named() -> None:
    seen = {
        rank: replace(
            rank_look(0, False, 60.0, at("x = layers(x)")),
            open_calls=(("0", "recv", -1, 60.0, rank - 1, "waiting"),) if rank else (),
        )
        for rank in RANKS
    }

    said = verdict(seen, seen)

    assert (said.state, said.ranks, said.cause) == (State.HANGS, (0,), "no peer")
    assert "rank 0 has not called the send that answers rank 1's recv from rank 0" in said.sentence


def test_a_rank_whose_stack_is_in_a_call_that_nobody_recorded_waits_itself() -> None:
    seen = looks(60.0, 2, "time.sleep(3600)")
    for rank, line in ((1, "request.wait()"), (2, "time.sleep(3600)"), (3, "request.wait()")):
        seen[rank] = rank_look(40, False, 60.0, at(line))

    said = verdict(seen, seen)

    assert (said.state, said.ranks, said.cause) == (State.HANGS, (2,), "absent")
    assert "ranks 1-3 have not come to all_reduce 41" in said.sentence
    assert "rank 2 sleeps" in said.sentence


@pytest.mark.parametrize(("waiting", "ranks"), [(3, (3,)), (2, (0, 1, 2, 3))])
def test_where_only_stacks_tell_the_one_rank_in_no_call_is_named(waiting: int, ranks: tuple[int, ...]) -> None:
    seen = {
        rank: rank_look(0, False, 60.0, at("request.wait()" if rank < waiting else "time.sleep(3600)"))
        for rank in RANKS
    }

    said = verdict(seen, seen)

    assert (said.state, said.ranks) == (State.HANGS, ranks)
    assert ("3 ranks (0-2) wait in a collective, and nothing tells for whom" in said.sentence) is (waiting == 3)


def test_a_job_that_has_ended_does_not_hang() -> None:
    ended = {f"rank{rank}": target(rank, alive=False, state="gone", ended="exited") for rank in RANKS}
    seen = looks(60.0, 2)

    assert verdict(seen, seen, **ended).state is State.ENDED


def test_ended_and_stopped_ranks_are_reported_together() -> None:
    seen = looks(60.0, None)

    said = verdict(
        seen,
        seen,
        rank3=target(3, alive=False, ended="was killed by SIGKILL", ended_badly=True),
        rank1=target(1, state="stopped"),
    )

    assert said.ranks == (1, 3)
    assert "rank 1 (pid 101 on node1) is stopped by a signal; resume it with: kill -CONT 101" in said.sentence
    assert "rank 3 (pid 103 on node1) has ended: it was killed by SIGKILL" in said.sentence


def test_a_job_that_has_died_is_told_with_the_rank_that_was_the_first() -> None:
    ended = {
        f"rank{rank}": target(
            rank, alive=False, ended="raised RuntimeError: Connection closed by peer", ended_badly=True, ended_at=100.2
        )
        for rank in RANKS
    }
    ended["rank2"] = replace(ended["rank2"], ended="raised ValueError: no labels", ended_at=100.0)
    seen = looks(60.0, None)

    said = verdict(seen, seen, **ended)

    assert (said.state, said.ranks, said.state.exit_code) == (State.DIED, (2,), 1)
    assert "raised ValueError: no labels" in said.sentence


def test_of_a_rank_that_gloo_may_have_aborted_the_reason_is_told() -> None:
    lost = target(
        1,
        alive=False,
        ended_badly=True,
        ended_at=9.1,
        ended="raised RuntimeError: [gloo/pair.cc] Connection closed by peer",
    )
    aborted = target(2, alive=False, ended="was killed by SIGABRT", ended_badly=True, ended_at=9.0)
    seen = looks(60.0, None)
    others = {f"rank{rank}": replace(lost, rank=rank) for rank in (0, 1, 3)}

    hint = "the ranks differ in the sizes of a collective"
    assert hint in verdict(seen, seen, rank1=lost, rank2=aborted).sentence
    assert hint in verdict(seen, seen, rank2=aborted, **others).sentence
    assert hint not in verdict(seen, seen, rank2=aborted).sentence


def test_ranks_that_have_come_to_the_end_of_the_program_are_not_to_blame_for_one_that_still_saves() -> None:
    seen = {rank: replace(look, recorded=()) for rank, look in looks(3.0, None).items()}
    seen[0] = replace(seen[0], stacks=at("torch.save(model, path)", "save"))
    ended = {f"rank{rank}": target(rank, alive=False, state="gone", ended="exited") for rank in RANKS[1:]}

    said = verdict(seen, seen, **ended)

    assert (said.state, said.ranks) == (State.NONE, ())


def test_ranks_lost_to_another_that_was_killed_are_not_to_blame() -> None:
    lost = target(
        1, alive=False, ended="raised RuntimeError: Connection closed by peer", ended_badly=True, ended_at=9.1
    )
    killed = target(3, alive=False, ended="was killed by SIGKILL", ended_badly=True, ended_at=9.0)
    seen = looks(60.0, None)

    assert verdict(seen, seen, rank1=lost, rank3=killed).ranks == (3,)


def test_a_step_that_takes_long_is_slow_and_no_hang() -> None:
    before = looks(0.5, None)
    pace = Pace(0.5, 2.0, 40.0, 200, 40.0)
    after = {rank: replace(seen, step=21, steps=pace) for rank, seen in before.items()}

    said = verdict(before, after)

    assert (said.state, said.state.exit_code) == (State.SLOW, 0)
    assert "the last step took 40 s, usual 2.0 s" in said.sentence


def test_what_a_look_could_not_ask_is_no_progress() -> None:
    seen = looks(60.0, 2, "time.sleep(3600)")
    silent = {rank: replace(look, come={}, newest_call=None) for rank, look in seen.items()}

    assert verdict(silent, seen).state is State.HANGS


@pytest.mark.parametrize(("stood_s", "state"), [(60.0, State.SLOW), (200.0, State.HANGS)])
@pytest.mark.parametrize("line", ["file.read(size)", "os.waitpid(pid, 0)"])
def test_storage_may_take_two_minutes(line: str, stood_s: float, state: State) -> None:
    seen = looks(stood_s, 2, line)

    assert verdict(seen, seen).state is state


def test_a_rank_in_state_d_is_given_time_and_then_named_with_the_kernel_function() -> None:
    waits = at("numpy.load(path)")
    in_kernel = replace(waits.threads[0], state="waiting for a disk", syscall="read", waits_in="folio_wait_bit")
    seen = looks(200.0, 2)
    seen[2] = replace(seen[2], stacks=replace(waits, threads=(in_kernel,)))

    said = verdict(seen, seen)

    assert (said.state, said.ranks) == (State.HANGS, (2,))
    assert "waits uninterruptibly in the kernel" in said.sentence
    assert "in read (folio_wait_bit)" in said.sentence
    shorter = {rank: replace(look, steps=Pace(60.0, 0.1, 0.3, 20), newest_call_age=60.0) for rank, look in seen.items()}
    assert verdict(shorter, shorter).state is State.SLOW


@pytest.mark.parametrize(("used", "state"), [(0.0, State.HANGS), (0.02, State.HANGS), (0.4, State.SLOW)])
def test_a_thread_that_uses_the_cpu_works_also_where_it_waits_for_those_that_share_its_work(
    used: float, state: State
) -> None:
    def seen(cpu_s: float) -> dict[int, Look]:
        evaluates = at("model(batch)")
        waits = replace(evaluates.threads[0], state="sleeping", syscall="futex", cpu_s=cpu_s)
        found = looks(60.0, 2)
        found[2] = replace(found[2], stacks=replace(evaluates, threads=(waits,)))
        return found

    said = verdict(seen(7.0), seen(7.0 + 2 * used))

    assert (said.state, said.ranks) == (state, (2,))
    what = "rank 2 runs in train (train.py:88), and has used 40 % of a CPU meanwhile"
    assert (what in said.sentence) == (state is State.SLOW)


def test_a_loader_whose_worker_works_is_given_time() -> None:
    seen = looks(60.0, 2, "batch = next(batches)")

    def judged(may_be_healthy: bool) -> Verdict:
        found = Details(("its loader worker 7 is busy",), may_be_healthy=may_be_healthy)
        return judge({rank: target(rank) for rank in RANKS}, seen, seen, between_s=2.0, details={2: found})

    assert judged(True).state is State.SLOW
    assert judged(False).state is State.HANGS
    assert "its loader worker 7 is busy" in judged(False).sentence


def meeting(age_s: float, away: int | None = None) -> tuple[dict[int, TargetInfo], dict[int, Look]]:
    """Four ranks that wait in init_process_group; one of them may be elsewhere."""
    meets = Frame("init_process_group", "/lib/site-packages/torch/distributed/distributed_c10d.py", 1, 0, "python", "")
    stack = at("dist.init_process_group()")
    stack = replace(stack, threads=(replace(stack.threads[0], frames=(meets, *stack.threads[0].frames)),))
    looks = {rank: Look(stacks=at("time.sleep(60)", "load") if rank == away else stack) for rank in RANKS}
    return {rank: target(rank, age_s=age_s, store="node1:29500") for rank in RANKS}, looks


def test_one_rank_too_few_at_the_start_is_named_with_the_place_where_the_others_meet() -> None:
    targets, seen = meeting(300.0)
    del targets[3], seen[3]

    said = judge(targets, seen, seen, between_s=2.0, missing=[3])

    assert (said.state, said.ranks, said.cause) == (State.UNKNOWN, (3,), "init")
    assert "rank 3 has not come to init_process_group, in which ranks 0-2 wait" in said.sentence
    assert "store node1:29500, world size 4" in said.sentence


@pytest.mark.parametrize(("age_s", "state"), [(20.0, State.UNKNOWN), (300.0, State.HANGS)])
def test_a_rank_that_does_not_come_to_the_start_is_named(age_s: float, state: State) -> None:
    targets, seen = meeting(age_s, away=1)

    said = judge(targets, seen, seen, between_s=2.0)

    assert (said.state, said.ranks) == (state, (1,))
    assert "rank 1 sleeps in load (train.py:88)" in said.sentence


def test_a_store_that_does_not_answer_is_the_cause() -> None:
    seen = looks(20.0, 2, "store.wait(keys)")
    found = {2: Details(("the job's store does not answer",), store_failure="the job's store does not answer")}

    said = judge({rank: target(rank) for rank in RANKS}, seen, seen, between_s=2.0, details=found)

    assert (said.state, said.cause) == (State.HANGS, "store")
    assert "the job's store does not answer" in said.sentence


def test_a_rank_that_left_the_job_is_named_though_the_others_have_ended_of_it() -> None:
    seen = {rank: replace(look, recorded=()) for rank, look in looks(60.0, 2, "time.sleep(60)").items()}
    lost = {"alive": False, "ended": "raised RuntimeError: Connection closed by peer", "ended_badly": True}

    said = verdict(seen, seen, **{f"rank{rank}": target(rank, **lost) for rank in (0, 1, 3)})

    assert (said.state, said.ranks, said.cause) == (State.HANGS, (2,), "left")
    assert "ranks 0-1,3 lost the connection to another rank, and ended; rank 2 sleeps" in said.sentence


def test_a_rank_that_raised_and_still_shuts_down_has_ended() -> None:
    seen = looks(60.0, None)

    said = verdict(seen, seen, rank2=target(2, ended="raised ValueError: no labels", ended_badly=True))

    assert (said.state, said.ranks, said.cause) == (State.HANGS, (2,), "gone")


def test_sizes_that_only_some_ranks_tell_are_no_mismatch() -> None:
    seen = looks(60.0, 2, "time.sleep(60)")
    seen[1] = replace(seen[1], recorded=(), open_calls=(("0", "all_reduce", 41, 60.0, -1, "waiting"),))

    said = verdict(seen, seen)

    assert (said.ranks, said.cause) == ((2,), "absent")


@pytest.mark.parametrize("num_others", [2, 3])
def test_a_rank_that_exited_without_an_error_is_to_blame_if_the_others_lost_it(num_others: int) -> None:
    seen = {rank: replace(look, recorded=()) for rank, look in looks(60.0, None).items()}
    lost = {"ended": "raised RuntimeError: Connection closed by peer", "ended_badly": True, "ended_at": 9.1}
    ended = {f"rank{rank}": target(rank, alive=False, **lost) for rank in (0, 1, 3)[:num_others]}
    ended["rank2"] = target(2, alive=False, ended="exited with code 0", ended_at=9.0)

    said = verdict(seen, seen, **ended)

    assert (said.ranks, said.cause, said.state.exit_code) == ((2,), "gone", 1)


@pytest.mark.parametrize(("stall", "ranks"), [("no step for 62 s", (2,)), ("", (0,))])
def test_of_a_job_that_was_killed_while_it_hung_the_hang_is_told(stall: str, ranks: tuple[int, ...]) -> None:
    seen = looks(60.0, 2)
    killed = {
        f"rank{rank}": target(
            rank, alive=False, ended="was killed by SIGKILL", ended_badly=True, ended_at=1_000.0 + rank, stall=stall
        )
        for rank in RANKS
    }

    said = verdict(seen, seen, **killed)

    assert (said.state, said.ranks) == (State.DIED, ranks)
    assert "rank 0 (pid 100 on node1) was the first to end" in said.sentence
    assert ("the job has died of a hang: rank 2 has not come to all_reduce 41" in said.sentence) is bool(stall)


TIMED_OUT = "raised RuntimeError: [gloo/unbound_buffer.cc] Timed out waiting 5000ms for recv operation to complete"


def ended_in_calls(
    stood_s: float, ended_s: float, how: str = TIMED_OUT
) -> tuple[dict[int, Look], dict[int, TargetInfo]]:
    """Ranks 0, 1 and 3 have ended in a call that failed, to which rank 2 had not come; rank 2 was killed then. No step
    had ended for `stood_s` when they were looked at."""
    failed = (("0", "all_reduce", 41, stood_s, -1, "failed"),)
    seen = {rank: replace(rank_look(41, False, stood_s, at("")), open_calls=failed, stacks=None) for rank in RANKS}
    seen[2] = replace(rank_look(40, False, stood_s, at("")), stacks=None)
    at_s = time.time() - ended_s
    ends = {rank: target(rank, alive=False, ended=how, ended_badly=True, ended_at=at_s + 0.01 * rank) for rank in RANKS}
    ends[2] = target(2, alive=False, ended="was killed by SIGTERM", ended_badly=True, ended_at=at_s + 1.0)
    return seen, ends


@pytest.mark.parametrize(
    ("stood_s", "how"), [(9.0, TIMED_OUT), (60.0, TIMED_OUT), (60.0, "was killed by SIGABRT")], ids=str
)
def test_ranks_whose_call_timed_out_are_victims_of_the_one_that_did_not_come(stood_s: float, how: str) -> None:
    seen, ends = ended_in_calls(stood_s, ended_s=4.0, how=how)

    said = judge(ends, seen, seen, between_s=2.0)

    assert (said.state, said.ranks, said.cause) == (State.DIED, (2,), "absent")
    assert said.sentence.startswith("the job has died of a hang: rank 2 has not come to all_reduce 41 of group default")
    assert "rank 0 (pid 100 on node1) was the first to end" in said.sentence


def test_a_rank_that_lives_when_the_others_have_timed_out_is_named_with_what_it_does() -> None:
    seen, ends = ended_in_calls(60.0, ended_s=4.0)
    seen[2], ends[2] = replace(seen[2], stacks=at("time.sleep(3600)", "validate")), target(2)

    said = judge(ends, seen, seen, between_s=2.0)

    assert (said.state, said.ranks, said.cause) == (State.HANGS, (2,), "absent")
    assert "rank 2 sleeps in validate (train.py:88); rank 0 (pid 100 on node1) was the first to end" in said.sentence


def test_a_crash_in_a_running_job_is_no_hang() -> None:
    seen, ends = ended_in_calls(60.0, ended_s=59.9, how="was killed by SIGKILL")

    said = judge(ends, seen, seen, between_s=2.0)

    assert (said.state, said.ranks, said.cause) == (State.DIED, (0,), "gone")


def test_a_rank_whose_own_request_timed_out_is_no_victim() -> None:
    seen, ends = ended_in_calls(9.0, ended_s=4.0, how="raised RuntimeError: Connection closed by peer")
    ends[2] = replace(ends[2], ended="raised requests.ReadTimeout: timed out", ended_at=ends[0].ended_at)

    said = judge(ends, seen, seen, between_s=2.0)

    assert (said.state, said.ranks, said.cause) == (State.DIED, (2,), "gone")


def test_a_rank_that_is_killed_while_the_others_wait_for_its_work_has_not_hung() -> None:
    seen, ends = ended_in_calls(60.0, ended_s=4.0, how="raised RuntimeError: Connection closed by peer")
    ends[2] = replace(ends[2], ended="was killed by SIGKILL: the OOM killer of the host", ended_at=ends[0].ended_at)

    said = judge(ends, seen, seen, between_s=2.0)

    assert (said.state, said.ranks, said.cause) == (State.DIED, (2,), "gone")
    assert said.sentence.startswith("the job has died: rank 2 ")


def test_a_rank_whose_last_calls_were_not_recorded_is_not_blamed() -> None:
    seen, ends = ended_in_calls(60.0, ended_s=4.0)
    seen[2] = replace(seen[2], come={"0": 12})

    said = judge(ends, seen, seen, between_s=2.0)

    assert said.ranks == (0,)
    assert said.sentence.endswith("; rank 0 was in all_reduce 41 of group 0 (failed) then")


def test_a_process_that_gets_on_within_a_step_does_not_hang() -> None:
    alone = {0: target(0, world_size=1)}

    def seen(micro_batches: int, worked_s: float) -> dict[int, Look]:
        stands = Look(20, Pace(300.0, 0.1, 0.3, 20), stacks=at("loss.backward()"))
        return {0: replace(stands, micro_batches=micro_batches, worked_s=worked_s)}

    def said(before: dict[int, Look], after: dict[int, Look]) -> Verdict:
        return judge(alone, before, after, between_s=2.0)

    skips = said(seen(1000, 40.0), seen(1100, 42.0))
    assert skips.state is State.NONE
    assert (
        skips.sentence == "no hang: rank 0 has called backward 100 times within 2.0 s, 1100 times since the last step"
    )
    evaluates = said(seen(1, 40.0), seen(1, 42.0))
    assert evaluates.sentence == "no hang: rank 0 has ended a part of the step under way within 2.0 s"
    assert said(seen(1, 40.0), seen(1, 40.0)).state is State.HANGS
