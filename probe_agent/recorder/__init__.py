"""The payload: everything that runs inside the target. Standard library only, CPython 3.9 and later.

This folder, and nothing else, is carried into the target; it may run there under another package name,
so every import in it is relative. `torch` is looked up in `sys.modules`, never imported.
"""

__version__ = "0.1.0"
