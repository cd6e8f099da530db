"""The Python prompt in a target: reading statements here, running them there.

loop.py      reads, runs, prints
lines.py     whole statements out of lines, and a piped script
prompt.py    a terminal with history and completion
evaluate.py  one evaluation, which `eval` shares
"""

from .loop import repl

__all__ = ["repl"]
