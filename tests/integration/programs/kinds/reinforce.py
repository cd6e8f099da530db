"""REINFORCE as in pytorch/examples: an episode with gradients, then one update from all its log-probabilities.

Holds: an episode is one step with one backward; its forward is that of all its actions, and every action has a forward
and a backward row.
"""

import torch
from paced import Paced, named, slow
from torch import nn
from torch.distributions import Categorical
from truth import Truth

EPISODES, LENGTH = 12, 6
truth = Truth(EPISODES)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1, self.affine2 = Paced(truth, nn.Linear(4, 16), 0.002, 0.001), nn.Linear(16, 2)

    def forward(self, x):
        return self.affine2(torch.relu(self.affine1(x))).softmax(-1)


torch.manual_seed(543)
torch.set_num_threads(1)
policy = named(Policy())
optimizer = slow(torch.optim.Adam(policy.parameters(), lr=1e-2))
for _ in range(EPISODES):
    state, log_probs, rewards = torch.randn(4), [], []
    for _ in range(LENGTH):
        with truth.clock("forward"):
            probabilities = policy(state)
        chosen = Categorical(probabilities)
        action = chosen.sample()
        log_probs.append(chosen.log_prob(action))
        rewards.append(-state.square().sum().item())
        state = state * 0.9 + 0.1 * (action - 0.5)
    returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    loss = torch.stack([-one * gain for one, gain in zip(log_probs, returns, strict=True)]).sum()
    optimizer.zero_grad()
    with truth.clock("backward"):
        loss.backward()
    with truth.clock("optimizer"):
        optimizer.step()
    truth.step(loss.item())
truth.tell(policy)
