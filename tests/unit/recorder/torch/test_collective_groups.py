"""Numbering of collectives by group, and those that were not called from Python."""

from __future__ import annotations

from probe_agent.recorder.torch.collective_groups import Group


def group(enqueued: int = 0, base: int = 0, counts_p2p: bool = True) -> Group:
    return Group("0", enqueued, base, 0, counts_p2p)


def test_calls_by_python_are_accounted_for():
    it = group()
    it.enqueued = 3

    for number in (1, 2, 3):
        it.called(number, is_p2p=False)

    assert it.num_unseen() == 0


def test_calls_by_cpp_are_not_accounted_for():
    it = group()
    it.enqueued = 5

    for number in (1, 4):
        it.called(number, is_p2p=False)

    assert it.num_unseen() == 3
    it.looked(had_called=True)
    assert (it.num_unseen(), it.num_since_look) == (0, 0)


def test_calls_before_the_attach_do_not_count():
    it = group(enqueued=100, base=100)
    it.enqueued = 101

    it.called(101, is_p2p=False)

    assert it.num_unseen() == 0
    assert not it.is_anchored


def test_sends_do_not_count_among_collectives():
    it = group()

    for number, is_p2p in ((1, False), (2, True), (3, True), (4, False)):
        it.called(number, is_p2p)

    assert (it.seq(1), it.seq(4)) == (1, 2)


def test_flight_recorder_tells_how_many_sends_there_were_before():
    it = group(enqueued=10, base=10)

    it.learn(number=9, seq=4)
    it.called(11, is_p2p=True)

    assert (it.seq(9), it.seq(10), it.seq(12)) == (4, 5, 6)


def test_a_send_made_while_flight_recorder_is_read_counts():
    it = group(enqueued=10, base=10)
    it.enqueued = 12  # 11 a collective, 12 a send whose number is not known yet

    it.learn(number=11, seq=4)
    it.looked(had_called=True)
    it.called(12, is_p2p=True)
    it.called(12, is_p2p=True)  # it goes on
    it.called(13, is_p2p=False)

    assert it.seq(13) == 5
    it.enqueued = 13
    assert it.num_unseen() == 0


def test_sends_between_the_last_collective_and_the_attach_are_unknown_until_the_next_one():
    """Flight Recorder has none of them: it is to be read again when the group has called a collective."""
    it = group(enqueued=100, base=100)
    it.learn(number=30, seq=4)  # read for another group
    it.looked(had_called=False)
    was_anchored = it.is_anchored
    it.called(101, is_p2p=True)
    it.called(102, is_p2p=False)

    it.learn(number=102, seq=5)
    it.looked(had_called=True)
    it.called(103, is_p2p=True)

    assert (was_anchored, it.is_anchored) == (False, True)
    assert (it.seq(102), it.seq(104)) == (5, 6)


def test_a_group_without_sends_since_its_last_collective_is_known_at_once():
    it = group(enqueued=30, base=30)

    it.learn(number=30, seq=4)
    it.looked(had_called=False)

    assert it.is_anchored
    assert it.seq(31) == 5


def test_sends_without_end_are_not_kept_without_end():
    it = group()

    for number in range(1, 50_001):
        it.enqueued = number
        it.called(number, is_p2p=True)
        if number % 100 == 0:
            assert it.num_unseen() == 0

    assert it.seq(50_001) == 1
    assert len(it._p2p) < 10_000
    assert len(it._called) < 1_000


def test_rows_without_end_are_not_remembered_without_end():
    it = group()

    for seq in range(1, 50_001):
        it.wrote(seq)

    assert 50_000 in it.written
    assert len(it.written) < 10_000


def test_a_backend_that_does_not_count_sends_needs_no_correction():
    it = group(enqueued=7, base=7, counts_p2p=False)

    it.learn(number=20, seq=3)

    assert it.is_anchored
    assert it.seq(8) == 8
