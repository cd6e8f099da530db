"""Requests that a target answers besides its rings, one file per operation, named after it.

Each has `answer(recorder, request)`, or `stream(recorder, request, reply)` if it sends more than one line. `READS =
True` marks one that changes nothing, which a target with PROBE_READONLY answers too. An operation runs on a thread of
the recorder while its answer is made, and costs nothing otherwise.
"""
