"""A classifier trained by epochs as pytorch/examples does: a DataLoader to train, one to validate, a schedule by epoch.

Holds: validation is not training: its batches, its forwards and their time are in no step's phases; the learning rate
is the one the epoch had; `batch_size` is that of the training batches.
"""

import torch
from paced import Paced, named, slow
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from truth import Truth

EPOCHS, BATCHES, BATCH = 3, 7, 8
truth = Truth(EPOCHS * BATCHES)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3)
        self.pool = Paced(truth, nn.MaxPool2d(2))
        self.dropout, self.fc = nn.Dropout(0.25), nn.Linear(8 * 12 * 12, 10)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        return F.log_softmax(self.fc(self.dropout(self.pool(x).flatten(1))), dim=1)


def slowly(batch):
    torch.randn(40_000).sort()
    return torch.utils.data.default_collate(batch)


def train(epoch):
    model.train()
    for number, (data, target) in enumerate(truth.batches(train_loader)):
        optimizer.zero_grad()
        with truth.clock("forward"):
            output = model(data)
        loss = F.nll_loss(output, target)
        with truth.clock("backward"):
            loss.backward()
        with truth.clock("optimizer"):
            optimizer.step()
        if number % 4 == 0:
            print(f"Train Epoch: {epoch} [{number * len(data)}/{len(train_set)}]\tLoss: {loss.item():.6f}")
        truth.others.setdefault("lr", []).append(optimizer.param_groups[0]["lr"])
        truth.step(loss.item())


def test():
    model.eval()
    correct = 0
    with torch.no_grad(), truth.clock("evaluation"):
        for data, target in test_loader:
            correct += (model(data).argmax(1) == target).sum().item()
            truth.others["eval_batches"] = truth.others.get("eval_batches", 0) + 1
    print(f"Test set: Accuracy: {correct}/{len(test_set)}")


torch.manual_seed(1)
torch.set_num_threads(1)
train_set = TensorDataset(torch.randn(EPOCHS * 0 + BATCHES * BATCH, 1, 28, 28), torch.randint(10, (BATCHES * BATCH,)))
test_set = TensorDataset(torch.randn(48, 1, 28, 28), torch.randint(10, (48,)))
train_loader = DataLoader(train_set, BATCH, shuffle=True, collate_fn=slowly)
test_loader = DataLoader(test_set, 16, collate_fn=slowly)
model = named(Net())
optimizer = slow(torch.optim.Adadelta(model.parameters(), lr=1.0))
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
truth.others["batch_size"] = BATCH
for epoch in range(EPOCHS):
    train(epoch)
    test()
    scheduler.step()
truth.tell(model)
