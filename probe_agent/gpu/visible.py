"""Rules of CUDA_VISIBLE_DEVICES: which GPUs a process sees, and as which `cuda:N`.

They are CUDA's, which torch repeats in `torch.cuda._parse_visible_devices`; a test compares the two. CUDA numbers
GPUs of different kinds by their speed unless CUDA_DEVICE_ORDER is PCI_BUS_ID, NVML always by bus: on a host with
several kinds, numbers (not UUIDs) can mean another GPU.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["visible_devices"]

#: As strtoul reads it: of "1gpu" the 1.
_NUMBER = re.compile(r"[+-]?\d+")


def visible_devices(variable: str | None, uuids: Sequence[str]) -> list[str]:
    """Return the UUIDs of cuda:0, cuda:1 and so on, given those of all GPUs in NVML's order; a MIG device as named."""
    if variable is None:
        return list(uuids)
    for prefix in ("GPU-", "MIG-"):
        if variable.startswith(prefix):
            return _named(variable.split(","), prefix, uuids)
    return _numbered(variable.split(","), uuids)


def _numbered(listed: Sequence[str], uuids: Sequence[str]) -> list[str]:
    """Read numbers up to the first that is invalid; none at all if one occurs twice."""
    found: list[int] = []
    for text in listed:
        match = _NUMBER.match(text.strip())
        number = int(match[0]) if match else -1
        if number in found:
            return []
        if not 0 <= number < len(uuids):
            break
        found.append(number)
    return [uuids[number] for number in found]


def _named(listed: Sequence[str], prefix: str, uuids: Sequence[str]) -> list[str]:
    """Read UUIDs, which may be shortened, up to the first that fits none or several."""
    found: list[str] = []
    for text in listed:
        if not text.startswith(prefix):
            break
        fitting = [text] if prefix == "MIG-" else [uuid for uuid in uuids if uuid.startswith(text)]
        if len(fitting) != 1:
            break
        if fitting[0] in found:
            return []
        found.append(fitting[0])
    return found
