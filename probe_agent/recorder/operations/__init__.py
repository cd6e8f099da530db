"""What the target can be asked besides its rings, one file an operation, named like its file.

Each has `answer(recorder, request)`, or `stream(recorder, request, reply)` when more than one line
comes back. `READS = True` says that it changes nothing, so that also a target with PROBE_READONLY answers it.
It runs on a thread of ours for as long as the answer takes; nothing of it runs when nobody asks.
"""
