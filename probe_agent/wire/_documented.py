"""Setting of every wire class, by which the sentence below a field becomes its description in the API's docs."""

from __future__ import annotations

__all__ = ["DOCUMENTED"]

#: Read by pydantic when FastAPI makes a model of a dataclass; nobody else looks at it.
DOCUMENTED = {"use_attribute_docstrings": True}
