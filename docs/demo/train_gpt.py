"""Train a small GPT to write Python, one character at a time, on the sources of Python's standard library.

An ordinary training script: a model, a DataLoader, AdamW and a loop, all locals of main().

    python train_gpt.py --steps 2000 --seed 7 --loss-log losses.jsonl
"""

import argparse
import json
import sysconfig
from pathlib import Path

import torch
import torch.nn as nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class CharDataset(Dataset):
    """Windows of `block_size` characters; the target of each character is the next one."""

    def __init__(self, text, block_size):
        self.chars = sorted(set(text))
        number = {char: i for i, char in enumerate(self.chars)}
        self.data = torch.tensor([number[char] for char in text], dtype=torch.uint8)
        self.block_size = block_size

    def __len__(self):
        return len(self.data) - self.block_size

    def __getitem__(self, i):
        window = self.data[i : i + self.block_size + 1].long()
        return window[:-1], window[1:]


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.qkv = nn.Linear(n_embd, 3 * n_embd)
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = (
            part.view(batch, time, self.n_head, width // self.n_head).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, time, width))


class MLP(nn.Module):
    def __init__(self, n_embd):
        super().__init__()
        self.up = nn.Linear(n_embd, 4 * n_embd)
        self.down = nn.Linear(4 * n_embd, n_embd)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = MLP(n_embd)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocab_size, block_size, n_layer=4, n_head=4, n_embd=64):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, n_embd)
        self.positions = nn.Embedding(block_size, n_embd)
        self.blocks = nn.ModuleList(Block(n_embd, n_head) for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd)
        self.head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx, targets):
        x = self.tokens(idx) + self.positions(torch.arange(idx.shape[1], device=idx.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln_f(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def read_text(num_chars):
    """Return the first `num_chars` characters of the standard library, file by file in alphabetical order."""
    text = ""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_text(encoding="ascii", errors="ignore")
        if len(text) >= num_chars:
            break
    return text[:num_chars]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--num-chars", type=int, default=1_000_000)
    parser.add_argument("--loss-log", type=Path, help="one JSON line per step: step, loss (exact, as hex), lr")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)

    dataset = CharDataset(read_text(args.num_chars), args.block_size)
    train_loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = GPT(len(dataset.chars), args.block_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1)
    num_parameters = sum(p.numel() for p in model.parameters())
    print(f"{num_parameters:,} parameters, {len(dataset):,} windows of text", flush=True)

    loss_log = args.loss_log.open("w", buffering=1) if args.loss_log else None
    batches = iter(train_loader)
    for step in range(1, args.steps + 1):
        try:
            inputs, targets = next(batches)
        except StopIteration:
            batches = iter(train_loader)
            inputs, targets = next(batches)
        loss = model(inputs, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        lr = optimizer.param_groups[0]["lr"]
        optimizer.step()
        if loss_log:
            print(json.dumps({"step": step, "loss": loss.item().hex(), "lr": lr}), file=loss_log)
        if step % 50 == 0:
            print(f"step {step:5d}  loss {loss.item():.4f}  lr {lr:g}", flush=True)


if __name__ == "__main__":
    main()
