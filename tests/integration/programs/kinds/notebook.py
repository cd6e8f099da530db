"""A notebook: cells run one after the other in IPython's shell; one of them trains, is interrupted and goes on.

Holds: what holds for any loop, over several cells.
"""

from IPython.core.interactiveshell import InteractiveShell
from truth import Truth

STEPS = 18
truth = Truth(STEPS)
shell = InteractiveShell.instance(history_load_length=0, colors="nocolor")
shell.history_manager.enabled = False
shell.user_ns["truth"] = truth
CELLS = [
    """
import torch
from paced import Paced, named, slow
from torch import nn
torch.manual_seed(21)
torch.set_num_threads(1)
model = named(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), Paced(truth, nn.Linear(16, 1))))
optimizer = slow(torch.optim.AdamW(model.parameters(), lr=1e-2))
inputs = torch.randn(truth.num_steps, 16, 8)
""",
    """
def train(begin, end):
    for number in range(begin, end):
        optimizer.zero_grad()
        with truth.clock("forward"):
            output = model(inputs[number])
        loss = (output - inputs[number].sum(1, keepdim=True)).square().mean()
        with truth.clock("backward"):
            loss.backward()
        with truth.clock("optimizer"):
            optimizer.step()
        truth.step(loss.item())
        if number == 8:
            raise KeyboardInterrupt
""",
    "train(0, truth.num_steps)",
    "train(9, truth.num_steps); loss_of_last = truth.losses[-1]",
    "print(loss_of_last)",
]
for cell in CELLS:
    answer = shell.run_cell(cell, store_history=True)
    print("interrupted" if answer.error_in_exec is not None else "done")
truth.tell(shell.user_ns["model"])
