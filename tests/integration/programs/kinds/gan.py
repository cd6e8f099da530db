"""A GAN with two optimizers of one class: the discriminator learns from real and generated samples, then the generator.

Holds: an iteration is one step, from one step of the first optimizer to the next, with the mean of its losses; it
includes the time of both optimizers; a module that runs three times per iteration has three forwards and three
backwards, each with its own time.
"""

import torch
from paced import Paced, named, slow
from torch import nn
from truth import Truth

STEPS, BATCH, NOISE = 14, 8, 16
truth = Truth(STEPS)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(NOISE, 32), nn.ReLU(), Paced(truth, nn.Linear(32, 16)), nn.Tanh())

    def forward(self, x):
        return self.main(x)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Linear(16, 32), nn.LeakyReLU(0.2), Paced(truth, nn.Linear(32, 1), 0.002, 0.003), nn.Sigmoid()
        )

    def forward(self, x):
        return self.main(x).squeeze(1)


def learn(loss):
    with truth.clock("backward"):
        loss.backward()
    losses.append(loss.item())


torch.manual_seed(999)
torch.set_num_threads(1)
netG, netD = named(Generator()), named(Discriminator())
criterion = nn.BCELoss()
optimizerD = slow(torch.optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999)))
optimizerG = slow(torch.optim.Adam(netG.parameters(), lr=0.0004, betas=(0.5, 0.999)))
truth.micro_batches = 3
losses = []
for number in range(STEPS):
    real = torch.randn(BATCH, 16)
    # The optimizer that steps last ends the program's iteration; the recorder's ends where the first one steps.
    netD.zero_grad()
    with truth.clock("forward"):
        output = netD(real)
    errD_real = criterion(output, torch.ones(BATCH))
    learn(errD_real)
    with truth.clock("forward"):
        fake = netG(torch.randn(BATCH, NOISE))
        output = netD(fake.detach())
    errD_fake = criterion(output, torch.zeros(BATCH))
    learn(errD_fake)
    with truth.clock("optimizer"):
        optimizerD.step()
    truth.step(sum(losses) / len(losses))
    losses.clear()
    netG.zero_grad()
    with truth.clock("forward"):
        output = netD(fake)
    errG = criterion(output, torch.ones(BATCH))
    learn(errG)
    with truth.clock("optimizer"):
        optimizerG.step()
    print(f"[{number}/{STEPS}] Loss_D: {(errD_real + errD_fake).item():.4f} Loss_G: {errG.item():.4f}")
truth.tell(netD, netG)
