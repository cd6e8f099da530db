"""The ranks behind the endpoints: which hosts a list names, which job a rank belongs to, who of it can be asked.

    discover.py        host lists behind -t: node[01-64]:8080, @FILE, slurm:, dns:
    default_target.py  the target when none is named
    launched.py        the processes that a launcher has started, and a rank's siblings on its host
    find_job.py        from one rank to the host servers of the whole job
    listing.py         one entry for each target behind the endpoints
    jobs.py            telling several jobs apart
    ended.py           ranks that have ended, and which one was the first

Runs in the CLI.
"""

__all__: list[str] = []
