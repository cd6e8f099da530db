"""Endpoints behind one `-t`: a single endpoint, or a list of hosts in one of four notations.

    node[01-64]:8080    ranges, as SLURM, pdsh and ClusterShell write them
    @hosts.txt          one endpoint or list a line
    slurm:8080          the hosts of the SLURM job that the command runs in
    dns:NAME:8080       every address of a name, as a headless service of Kubernetes has one a pod

Runs in the CLI before anything is asked. Text in, endpoints out; only `dns:` asks the network.
"""

from __future__ import annotations

import ipaddress
import itertools
import os
import re
import socket
from collections.abc import Callable, Mapping

from probe_agent.errors import BadRequest, NoAnswer
from probe_cli.endpoint import Endpoint, parse_endpoint

__all__ = ["MAX_HOSTS", "NOTATIONS", "endpoints_of", "expand", "split"]

MAX_HOSTS = 10_000
#: Brackets with colons in them are an IPv6 address and no list.
_PAIR = re.compile(r"\[([^\[\]:]*)\]")
_RANGE = re.compile(r"([0-9]{1,12})(?:-([0-9]{1,12}))?")
_EXAMPLE = "write a list as node[01-64]:8080, node[1-3,7]:8080 or rack[1-2]n[01-16]:8080"
_SLURM_VARIABLES = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")


def endpoints_of(text: str) -> tuple[Endpoint, ...]:
    """What `text` names, each once; at least one. Raises BadRequest, or NoAnswer when a name has no address."""
    text = text.strip()
    for prefix, notation in NOTATIONS.items():
        if text.startswith(prefix):
            lines = notation(text.removeprefix(prefix))
            return tuple(dict.fromkeys(endpoint for line in lines for endpoint in _parsed(line, text)))
    return tuple(dict.fromkeys(_parsed(text, text)))


def _parsed(text: str, asked: str) -> list[Endpoint]:
    if text.startswith(tuple(NOTATIONS)):
        raise BadRequest(f"{asked}: a list cannot hold another list: {text}", "give it a -t of its own")
    return [parse_endpoint(each) for each in expand(text)] if _is_list(text) else [parse_endpoint(text)]


def _is_list(text: str) -> bool:
    """Whether there is a list in `text`, or an attempt at one."""
    return _PAIR.search(text) is not None or text.count("[") != text.count("]")


def expand(text: str) -> list[str]:
    """Every text that the ranges in `text` stand for, in their order. Raises BadRequest."""
    pieces = _PAIR.split(text)  # text, list, text, list, …, text
    if any("[" in piece or "]" in piece for piece in pieces[2::2]) or pieces[0].count("[") != pieces[0].count("]"):
        raise BadRequest(f"{text}: unbalanced bracket", _EXAMPLE)
    lists = [_ranges(piece, text) for piece in pieces[1::2]]
    num = 1
    for ranges in lists:
        num *= sum(last - first + 1 for first, last, _ in ranges)
    if num > MAX_HOSTS:
        raise BadRequest(f"{text}: {num:,} hosts; the limit is {MAX_HOSTS:,}", "split the list")
    columns = [
        [f"{number:0{width}}" for first, last, width in ranges for number in range(first, last + 1)] for ranges in lists
    ]
    return [
        "".join(itertools.chain(*zip(pieces[::2], (*picked, ""), strict=True)))
        for picked in itertools.product(*columns)
    ]


def split(text: str) -> list[str]:
    """The parts of `text` between commas and spaces; brackets are kept whole."""
    return [part for part in re.split(r"[,\s]+(?![^\[]*\])", text) if part]


def _ranges(content: str, text: str) -> list[tuple[int, int, int]]:
    """First, last and least number of digits of each range."""
    if not content.strip():
        raise BadRequest(f"{text}: the brackets are empty", _EXAMPLE)
    found = []
    for part in content.split(","):
        ends = _RANGE.fullmatch(part.strip())
        if ends is None:
            raise BadRequest(f"{text}: {part.strip() or content!r} is neither a number nor a range", _EXAMPLE)
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if first > last:
            raise BadRequest(f"{text}: the range {part.strip()} is reversed", f"write it as {ends[2]}-{ends[1]}")
        found.append((first, last, len(ends[1])))
    return found


def _from_file(path: str) -> list[str]:
    """The lines of a text file; what follows a # is a comment."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.partition("#")[0].strip() for line in file]
    except (OSError, UnicodeDecodeError) as failure:
        raise BadRequest(f"cannot read {path!r}: {failure}", "name a text file: -t @FILE") from failure
    found = [line for line in lines if line]
    if not found:
        raise BadRequest(f"{path} names no endpoint", "write one a line, such as node1:8080")
    return found


def _from_slurm(port: str) -> list[str]:
    """`host:port` of every host of the SLURM job, from its environment: nothing of SLURM needs to be installed."""
    if not (port.isascii() and port.isdigit()):
        raise BadRequest(f"slurm:{port}: invalid port {port!r}", "write it as slurm:8080")
    nodes = next((os.environ[name] for name in _SLURM_VARIABLES if os.environ.get(name, "").strip()), "")
    hosts = [host for part in split(nodes) for host in expand(part)]
    if not hosts:
        raise BadRequest(
            f"slurm:{port}: {_SLURM_VARIABLES[0]} is not set, so this is not the environment of a SLURM job",
            "run it inside the job (srun --jobid ID --overlap …), or set it to what `squeue -j ID -h -o %N` prints",
        )
    return [f"{host}:{port}" for host in hosts]


def _from_dns(text: str) -> list[str]:
    """`address:port` for each IPv4 and IPv6 address of a name."""
    name, _, port = text.rpartition(":")
    if not name or not (port.isascii() and port.isdigit()):
        raise BadRequest(f"dns:{text}: a name and a port are needed", "write it as dns:trainer.namespace.svc:8080")
    try:
        found = socket.getaddrinfo(name, int(port), type=socket.SOCK_STREAM)
    except (OSError, OverflowError, UnicodeError) as failure:
        raise NoAnswer(
            f"dns:{text}: {name} has no address ({getattr(failure, 'strerror', None) or failure})",
            "check that the service is headless (clusterIP: None), that its pods are ready, and that this is inside"
            " the cluster",
        ) from failure
    addresses = {ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in found}
    ordered = sorted(addresses, key=lambda address: (address.version, int(address)))
    return [f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}" for address in ordered]


#: What a list begins with -> the function that reads the rest.
NOTATIONS: Mapping[str, Callable[[str], list[str]]] = {"@": _from_file, "slurm:": _from_slurm, "dns:": _from_dns}
