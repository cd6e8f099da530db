"""An endless loop that counts steps, with only the answering half of the recorder.

Standard library only, for every Python that a target may run. It keeps everything as locals of main(). Prints
`ready` once the socket listens and steps are taken; ends when its standard input does, and prints its report.
"""

from __future__ import annotations

import _thread
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from probe_agent.recorder.control.server import ControlServer
from probe_agent.recorder.evaluate import Evaluator
from probe_agent.recorder.guest import fault_dump, own_threads
from probe_agent.recorder.operations import stacks
from probe_agent.recorder.steps.queue import StepQueue

scale = 10
training = [None]
errors = []


class Batch:
    """An object that weak references can watch."""

    alive = 0

    def __init__(self, number):
        self.number = number
        Batch.alive += 1

    def __del__(self):
        Batch.alive -= 1


class Trainer:
    def __init__(self):
        self.current_step = 0
        self.grad_clip = 1.5
        self.total = 0

    def training_step(self, batch, pause):
        fresh = Batch(batch.number)
        self.current_step += 1
        self.total = (self.total * 31 + fresh.number * scale) % 1_000_003
        time.sleep(pause)


def start_recorder(path, queue):
    evaluator = Evaluator(queue, lambda: training[0], lambda source, error: errors.append((source, repr(error))))
    dump = fault_dump.FaultDump(path + ".stacks")
    server = ControlServer(
        path,
        {
            "hello": lambda request, reply: {"pid": os.getpid(), "stacks_signal": dump.arm(), "errors": errors},
            "stacks": lambda request, reply: {
                "threads": stacks.take(bool(request.get("all")), training[0], own_threads.idents())
            },
            "eval": evaluator.eval,
            "complete": evaluator.complete,
            "break": lambda request, reply: 1 / 0,
        },
        lambda source, error: errors.append((source, repr(error))),
    )
    os.register_at_fork(after_in_child=lambda: (evaluator.close(), server.close()))
    server.listen()
    _thread.start_new_thread(server.serve, (lambda: None, 0.1))


def main():
    trainer = Trainer()
    queue = StepQueue(lambda: f"step {trainer.current_step}")
    training[0] = _thread.get_ident()
    start_recorder(sys.argv[1], queue)
    stopping = []
    _thread.start_new_thread(lambda: stopping.append(sys.stdin.read()), ())
    print("ready", flush=True)
    while not stopping:
        batch = Batch(trainer.current_step)
        trainer.training_step(batch, 0.001)
        if queue.pending:
            queue.run_pending()
        if trainer.current_step == int(os.environ.get("NO_STEPS_AFTER", "-1")):
            stopping_check = time.sleep
            while not stopping:
                stopping_check(0.01)
    print("finished", trainer.current_step, Batch.alive, errors, flush=True)


if __name__ == "__main__":
    main()
