"""A process with torch in it that never uses the device: whatever looks at it must leave that so."""

import os
import time

import torch
from control import Control


def links():
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return sorted(link for link in found if "nvidia" in link)


def main():
    control = Control(__doc__)
    model = torch.nn.Linear(4, 4)
    before = links()
    control.say("ready")
    while not control.told("stop"):
        model(torch.ones(2, 4))
        time.sleep(0.01)
    control.say("final", initialized=torch.cuda.is_initialized(), opened=[one for one in links() if one not in before])


if __name__ == "__main__":
    main()
