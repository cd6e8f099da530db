"""A small MLP that trains, and does on command what can come between a profiler and its steps.

    profiled_training.py [--steps N] [--base BASE]

Without --steps it trains until its standard input ends; with it, the last line it prints is the answer to `digest`.
With --base it starts the recorder itself, with its folder in BASE. Prints `ready` at step 5. Commands, one per line:

    own, warm, off        use torch's profiler itself, or let it warm up; stop that
    when-profiled WHAT    as soon as a profiler runs: own, fork, end, slow, or hold (until `go`)
    digest                print how many steps it has taken, and a digest of all losses
    profiled?             print whether a profiler is on
"""

from __future__ import annotations

import _thread
import hashlib
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

LAYERS = 4


class Trainer:
    def __init__(self):
        torch.manual_seed(11)
        self.network = nn.Sequential(*[nn.Linear(16, 16) for _ in range(LAYERS)], nn.Dropout(0.1))
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.01, momentum=0.9)
        self.current_step = 0
        self.digest = hashlib.sha256()
        self.pause = 0.002

    def train(self):
        self.current_step += 1
        self.optimizer.zero_grad()
        loss = self.network(torch.randn(8, 16)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.digest.update(loss.item().hex().encode())
        time.sleep(self.pause)


def say(*what):
    print(*what, flush=True)


def profiled():
    return torch.autograd.profiler._is_profiler_enabled


def argument(name):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else None


def start_recorder(base):
    import own_recorder

    from probe_agent.recorder.ring import folder

    folder.BASES = (base,)
    with open("/proc/self/stat") as file:
        own = folder.make(os.getpid(), folder.start_ticks(file.read()))
    own_recorder.start(own)
    while not os.path.exists(os.path.join(own, folder.TARGET)):
        time.sleep(0.001)


def main():
    torch.set_num_threads(1)
    trainer = Trainer()
    num_steps, when, own = int(argument("--steps") or 0), "", None
    commands = []
    if num_steps:
        trainer.pause = 0

    def read():
        for line in iter(sys.stdin.readline, ""):
            commands.append(line.strip())
        commands.append("end")

    _thread.start_new_thread(read, ())
    if argument("--base"):
        start_recorder(argument("--base"))
    while True:
        while commands:
            command = commands.pop(0)
            if command == "end" and not num_steps:
                return
            if command == "own":
                own = profile(activities=[ProfilerActivity.CPU])
                own.start()
                say("on")
            if command == "warm":
                own = profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=9, active=1))
                own.start()
                say("warm")
            if command == "off":
                own.stop()
                own = None
                say("off")
            if command == "profiled?":
                say(profiled())
            if command == "digest":
                say(trainer.current_step, trainer.digest.hexdigest())
            if command.startswith("when-profiled"):
                when = command.split()[1]
                say("then", when)
        trainer.train()
        if trainer.current_step == 5:
            say("ready")
        if trainer.current_step == num_steps:
            say(trainer.current_step, trainer.digest.hexdigest())
            return
        if when and profiled():
            if when == "own":
                with profile(activities=[ProfilerActivity.CPU]) as mine:
                    trainer.train()
                    trainer.train()
                say("own", sum(one.count for one in mine.key_averages() if one.key == "Optimizer.step#SGD.step"))
            if when == "fork":
                child = os.fork()
                if not child:
                    os._exit(profiled() or torch._C._autograd._profiler_enabled())
                say("forked", os.waitpid(child, 0)[1])
            if when == "end":
                return
            if when == "slow":
                trainer.pause = 0.2
                say("slow")
            if when == "hold":
                say("holding")
                while "go" not in commands:
                    time.sleep(0.005)
                commands.remove("go")
            when = ""


if __name__ == "__main__":
    main()
