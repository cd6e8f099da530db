"""A small GPT trained as nanoGPT does: four micro-batches a step, gradient clipping, a warm-up, AdamW with two groups.

Holds: a step is an optimizer step with four micro-batches; its loss is that of the whole batch; forward, backward and
optimizer are the sums of all four; every call of a block has its own backward row.
"""

import math

import torch
from paced import Paced, named, slow
from torch import nn
from torch.nn import functional as F
from truth import Truth

STEPS, MICRO, BATCH, BLOCK, VOCAB, WIDTH = 12, 4, 4, 16, 64, 32
truth = Truth(STEPS)
truth.micro_batches = MICRO


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (part.unflatten(2, (4, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(WIDTH), Attention()
        self.ln_2 = nn.LayerNorm(WIDTH)
        layers = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.mlp = Paced(truth, layers, 0.001, 0.002)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(2))
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, index, targets):
        x = self.wte(index) + self.wpe(torch.arange(index.size(1)))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch():
    at = torch.randint(len(data) - BLOCK, (BATCH,))
    return torch.stack([data[i : i + BLOCK] for i in at]), torch.stack([data[i + 1 : i + 1 + BLOCK] for i in at])


torch.manual_seed(1337)
torch.set_num_threads(1)
data = torch.randint(VOCAB, (1000,))
model = named(GPT())
matrices = [p for p in model.parameters() if p.dim() > 1]
others = [p for p in model.parameters() if p.dim() < 2]
optimizer = slow(torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": others}], lr=1e-3))
X, Y = get_batch()
for iteration in range(STEPS):
    lr = 1e-3 * min(1.0, (iteration + 1) / 5) * 0.5 * (1 + math.cos(math.pi * iteration / STEPS))
    for group in optimizer.param_groups:
        group["lr"] = lr
    total = 0.0
    for _ in range(MICRO):
        with truth.clock("forward"):
            logits, loss = model(X, Y)
        loss = loss / MICRO
        X, Y = get_batch()
        with truth.clock("backward"):
            loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with truth.clock("optimizer"):
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if iteration % 3 == 0:
        print(f"iter {iteration}: loss {total:.4f}, lr {lr:.2e}")
    truth.step(total)
truth.tell(model)
