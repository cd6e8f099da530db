"""Memory of one target or of all ranks: what takes it, whether it grows, when it is full, and which line leaks.

look.py     one look at a target: what takes its memory now, and how that has changed
trend.py    growth of a series, and its significance
report.py   the verdict, in sentences
leaks.py    lines that keep what they have allocated in a window
"""

__all__: list[str] = []
