"""The training thread waits for another thread or process of the job.

A thread that cuts windows, unpacks an archive or fills a queue, a pool of processes, a socket: what no DataLoader does
is in no `data_wait`, and the step waits for it all the same. The stacks of the training thread, read from outside, tell
the line that it waits in, and those of the other threads what they do meanwhile. A wait inside torch is not counted:
collectives and loaders have rules of their own. Nor is a thread that has been woken and waits for a core, nor a server
that waits for requests: the steps of a job that is judged call backward.
"""

from __future__ import annotations

from probe_cli.diagnose.rule import Rule, Threshold, of_each_rank
from probe_cli.diagnose.sampling import ON_A_FREE_HOST, look_for, meanwhile, suspected_on_a_free_host, waits

__all__ = ["RULE"]


RULE = Rule(
    "waits-for-thread",
    "speed",
    "Does the training thread wait for other threads or processes of the job?",
    ON_A_FREE_HOST,
    of_each_rank(suspected_on_a_free_host),
    (
        Threshold("share", 0.2, "share of the training thread's time"),
        Threshold("pressure", 0.9, "share of the time in which tasks wait for a core, from which nothing is judged"),
        Threshold("steps", 20, "steps needed to judge"),
    ),
    explains=("pauses", "slower-than-best"),
    look=look_for(
        waits,
        "waits for other threads or processes of the job",
        (
            "see what they do: `probe PID backtrace --all`, and the hottest lines: `probe PID profile --cpu 5s`",
            "take work out of them: unpack, decode and read once, not for each sample",
            "let several do it: a DataLoader with worker processes, where Python code runs side by side",
        ),
        "probe PID profile --cpu 5s",
        meanwhile,
    ),
    on_host=True,
)
