"""State of a process as seen from inside: everything that an attach could leave behind."""

import gc
import os
import re
import signal
import sys
import threading
import time


def snapshot():
    """Take the state; equal before and after if nothing was left behind."""
    gc.collect()
    return {
        "stdout": getattr(sys.stdout, "write", None).__qualname__,
        "excepthook": repr(sys.excepthook),  # IPython makes a new bound method for each cell
        "trace": str(sys.gettrace()),
        "profile": str(sys.getprofile()),
        "threads": _num_threads(),
        "python threads": [thread.name for thread in threading.enumerate()],
        "descriptors": sorted(_link(name) for name in os.listdir("/proc/self/fd")),
        "rings mapped": [line.split()[-1] for line in open("/proc/self/maps") if "probe" in line],
        "handlers": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "caught": [_masked(line) for line in open("/proc/self/status") if re.match("Sig(Cgt|Ign|Blk)", line)],
        "modules": sorted(name for name in sys.modules if "probe" in name),
        "importers": [str(one) for one in (*sys.meta_path, *sys.path_hooks)],
        "sys": sorted(set(vars(sys)) - {"_probe_fork_watchers", "last_exc"}),
        "fork watchers": len(getattr(sys, "_probe_fork_watchers", ())),
        # To look at every object below raises warnings of torch's, which are noted here.
        "main": sorted(set(vars(sys.modules["__main__"])) - {"__warningregistry__"}),
        "switch interval": sys.getswitchinterval(),
        "our objects": sorted(str(one)[:80] for one in gc.get_objects() if _is_ours(one)),
        "torch": _of_torch() if "torch" in sys.modules else None,
    }


def _num_threads():
    """Return the lasting number of threads: one that was joined is still listed for a moment."""
    numbers = []
    for _ in range(5):
        numbers.append(len(os.listdir("/proc/self/task")))
        time.sleep(0.005)
    return min(numbers)


def _masked(line):
    """Exclude signals 32 and 33: glibc uses them when a process starts its first thread."""
    name, _, mask = line.partition(":")
    return name, hex(int(mask, 16) & ~(0b11 << 31))


def _of_torch():
    """Return the methods of torch that we patch, and its tables of hooks."""
    import torch
    from torch.optim import optimizer as optimizers
    from torch.utils.data import dataloader

    modules = torch.nn.modules.module
    watched = {
        "backward": torch.autograd.backward,
        "scale": torch.amp.GradScaler.scale,
        "update": torch.amp.GradScaler.update,
        "zero_grad": torch.optim.Optimizer.zero_grad,
        "call": torch.nn.Module.__call__,
        "next": dataloader._BaseDataLoaderIter.__next__,
        "iter": dataloader.DataLoader.__iter__,
        "no grad entered": torch.no_grad.__enter__,
        "no grad left": torch.no_grad.__exit__,
        "inference mode": torch.inference_mode.__enter__,
        "any hook": modules._has_any_global_hook,
    }
    tables = {name: len(table) for name, table in vars(modules).items() if name.startswith("_global_") and table}
    for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        tables[name] = str(getattr(optimizers, name))
    return {"patched": {name: hex(id(value)) for name, value in watched.items()}, "hooks": tables}


def _link(name):
    try:
        return re.sub(r"\d+", "N", os.readlink(f"/proc/self/fd/{name}"))  # batches of a worker have numbers
    except FileNotFoundError:
        return "the folder being listed"


def _is_ours(value):
    return str(vars(type(value)).get("__module__")).startswith("_probe") or str(
        getattr(value, "__module__", "") if isinstance(value, (type, type(_link))) else ""
    ).startswith("_probe")
