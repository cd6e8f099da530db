"""Setting of every wire class, by which the sentence below a field becomes its description in the API's docs."""

from __future__ import annotations

__all__ = ["DOCUMENTED"]

#: Read by pydantic when it makes a model of a dataclass; nobody else looks at it. The sentences are read from the
#: sources, so the server turns that on when somebody asks for the docs.
DOCUMENTED = {"use_attribute_docstrings": False}
