"""From what stands behind `-t` to endpoints: one of them, or a list of hosts in one of several notations.

Runs in the CLI before anything is asked; one file a notation, none of which knows another. Plain text in, plain text
out: what an endpoint is, `probe_cli.endpoint` says.
"""

from __future__ import annotations

from importlib import import_module

from probe_agent.errors import BadRequest
from probe_cli.endpoint import Endpoint, parse_endpoint

from .brackets import expanded, is_list

__all__ = ["NOTATIONS", "endpoints_of"]

#: What a list begins with -> the module that reads it; its `endpoints(rest)` gives texts.
NOTATIONS = {"@": "file", "slurm:": "slurm", "dns:": "dns"}


def endpoints_of(text: str) -> tuple[Endpoint, ...]:
    """What `text` names, each once; at least one. Raises BadRequest, or NoAnswer when nobody knows the hosts."""
    text = text.strip()
    for beginning, module in NOTATIONS.items():
        if text.startswith(beginning):
            lines = import_module(f"{__name__}.{module}").endpoints(text.removeprefix(beginning))
            return tuple(dict.fromkeys(endpoint for line in lines for endpoint in _expanded(line, text)))
    return tuple(dict.fromkeys(_expanded(text, text)))


def _expanded(text: str, asked: str) -> list[Endpoint]:
    if text.startswith(tuple(NOTATIONS)):
        raise BadRequest(f"{asked}: {text} is a list in a list", "name it with a -t of its own")
    return [parse_endpoint(each) for each in expanded(text)] if is_list(text) else [parse_endpoint(text)]
