"""What the user sees: tables that fit, files that other programs read, stacks with their source lines.

Plain functions from data to text, standard library only (`columnar.py` apart, the door to Parquet).
"""

from .sheet import Sheet

__all__ = ["Sheet"]
