"""GRPO in small: a tiny Llama generates a group of answers, then two updates on their advantages.

Holds: an update is a step; the time of `generate` is in no update's forward, and can be summed separately.
"""

import torch
from paced import slow
from transformers import LlamaConfig, LlamaForCausalLM
from truth import Truth

GROUPS, UPDATES, ANSWERS, LENGTH = 4, 2, 4, 12
truth = Truth(GROUPS * UPDATES)
torch.manual_seed(34)
torch.set_num_threads(1)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
model = LlamaForCausalLM(LlamaConfig(vocab_size=256, max_position_embeddings=64, pad_token_id=0, **sizes))
optimizer = slow(torch.optim.AdamW(model.parameters(), lr=1e-4))


def log_probs(tokens):
    logits = model(tokens).logits[:, :-1]
    return logits.log_softmax(-1).gather(2, tokens[:, 1:, None]).squeeze(2)[:, 3:]


for group in range(GROUPS):
    prompt = torch.randint(1, 256, (1, 4)).repeat(ANSWERS, 1)
    model.eval()
    with torch.no_grad(), truth.clock("generation"):
        answers = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=LENGTH, min_new_tokens=LENGTH, do_sample=True
        )
    reward = (answers[:, 4:] % 2).float().mean(1)
    advantage = (reward - reward.mean()) / (reward.std() + 1e-4)
    model.train()
    for _ in range(UPDATES):
        with truth.clock("forward"):
            chosen = log_probs(answers)
        loss = -(chosen.mean(1) * advantage).mean()
        optimizer.zero_grad()
        with truth.clock("backward"):
            loss.backward()
        with truth.clock("optimizer"):
            optimizer.step()
        truth.step(loss.item())
    print(f"group {group}: reward {reward.mean().item():.4f}")
truth.tell(model)
