"""A process that holds memory of the device in a known way: a leak of one line, and blocks with gaps between them.
Told to be busy, it keeps the device busy. Its global `KNOWN` has a known sum."""

import torch
from control import Control

KNOWN = None
MIB = 2**20


def keep(device, kept):
    for _ in range(10):
        kept.append(torch.ones(3 * MIB // 4, device=device))  # this line keeps 30 MiB


def fragment(device):
    """Return every second of forty blocks of 4 MiB; the others are freed."""
    blocks = [torch.ones(MIB, device=device) for _ in range(40)]
    return blocks[::2]


def main():
    global KNOWN
    control = Control(__doc__)
    kept = []
    KNOWN = torch.arange(1000.0, device=control.device)
    control.synchronize()
    control.say("begun")
    control.wait("history")
    keep(control.device, kept)
    fragments = fragment(control.device)
    stats = torch.cuda.memory_stats() if control.on_gpu else {}
    control.synchronize()
    control.say(
        "ready",
        kept=len(kept) + len(fragments),
        inactive=stats.get("inactive_split_bytes.all.current", 0) / MIB,
        requested=stats.get("requested_bytes.all.current", 0) / MIB,
        segments=stats.get("segment.all.current", 0),
        **control.mib(),
    )
    control.wait("busy")
    product = torch.randn(4096 if control.on_gpu else 128, 4096 if control.on_gpu else 128, device=control.device)
    product /= product.norm()
    control.say("working")
    while not control.told("stop"):
        for _ in range(20):
            product = torch.tanh(product @ product)
        control.synchronize()
    control.say("final")


if __name__ == "__main__":
    main()
