"""PPO: a rollout under `no_grad`, then several updates on its data.

Holds: an update is a step; the rollout's forwards are generation, in the first step after it, and in no update's
forward.
"""

import torch
from paced import Paced, named, slow
from torch import nn
from truth import Truth

ROLLOUTS, LENGTH, UPDATES = 4, 8, 5
truth = Truth(ROLLOUTS * UPDATES)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Paced(truth, nn.Linear(4, 16))
        self.actor, self.critic = nn.Linear(16, 2), nn.Linear(16, 1)

    def forward(self, state):
        hidden = torch.tanh(self.body(state))
        return torch.distributions.Categorical(logits=self.actor(hidden)), self.critic(hidden).squeeze(-1)


def rollout():
    """Return states, actions, their log-probabilities and returns of one episode of an unbalanceable pole."""
    state, seen = torch.randn(1, 4), []
    for _ in range(LENGTH):
        with torch.no_grad(), truth.clock("generation"):
            policy, _ = agent(state)
        action = policy.sample()
        seen.append((state, action, policy.log_prob(action)))
        state = state * 0.9 + torch.randn(1, 4) * 0.1 + (action - 0.5).unsqueeze(1) * 0.1
    states, actions, before = (torch.cat(part) for part in zip(*seen, strict=True))
    return states, actions, before, -states.square().sum(1).flip(0).cumsum(0).flip(0)


torch.manual_seed(3)
torch.set_num_threads(1)
agent = named(ActorCritic())
optimizer = slow(torch.optim.Adam(agent.parameters(), lr=3e-3))
for number in range(ROLLOUTS):
    agent.eval()
    states, actions, before, returns = rollout()
    agent.train()
    for _ in range(UPDATES):
        with truth.clock("forward"):
            policy, value = agent(states)
        ratio = (policy.log_prob(actions) - before).exp()
        advantage = returns - value.detach()
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        loss = -gain.mean() + 0.5 * (returns - value).square().mean() - 0.01 * policy.entropy().mean()
        optimizer.zero_grad()
        with truth.clock("backward"):
            loss.backward()
        with truth.clock("optimizer"):
            optimizer.step()
        truth.step(loss.item())
    print(f"rollout {number}: return {returns[0].item():.4f}")
truth.tell(agent)
