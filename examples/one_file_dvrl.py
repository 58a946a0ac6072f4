"""Deep variational reinforcement learning in one file (Igl et al., ICML 2018), on Mountain Hike.

A hiker's position is seen only through noise, so the agent keeps a belief about it: K particles,
moved and weighed by a model of the world that it learns while it walks. Read from top to bottom,
beside the paper: `# Eq. 16` marks the paper's equation 16. T counts steps, N worlds, K particles.

    python examples/one_file_dvrl.py --steps 100000
"""

import argparse
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise

import torch
from torch import Generator, Tensor, nn
from torch.distributions import Independent, Normal
from torch.func import functional_call
from torch.nn import functional as F


@dataclass(frozen=True)
class Config:
    """Settings that learn in minutes; the paper's own values stand in brackets."""

    sigma: float = 3.0
    """sigma_o, standard deviation of the observation noise [0, 1.5, 3]."""
    n_envs: int = 32
    """n_e, worlds side by side [16]."""
    n_steps: int = 5
    """n_s, steps of experience per update [5]."""
    n_grad: int = 10
    """n_g, steps a gradient may travel back; a multiple of n_s [25]."""
    n_particles: int = 5
    """K, particles per world [30]."""
    h_dim: int = 64
    """Size of the recurrent state h and of the summary [128]."""
    z_dim: int = 64
    """Size of the stochastic state z [128]."""
    embed_dim: int = 64
    """Size of embedded observations and actions [64]."""
    mean_bound: float | None = 2.0
    """Longest mean of the policy, so that it cannot run far beyond the world's cap [None]."""
    gamma: float = 0.95
    """Discount [0.99]."""
    reward_scale: float = 0.1
    """Rewards are multiplied by this for learning; printed returns are not [1]."""
    bootstrap_cuts: bool = True
    """At the time limit, go on with the value of the last observation, not with zero [False]."""
    normalise_advantage: bool = True
    """Centre and scale the advantages that weigh the policy's gradient [False]."""
    entropy_weight: float = 0.002
    """lambda^H [0.01]."""
    value_weight: float = 0.5
    """lambda^V [0.5]."""
    elbo_weight: float = 1.0
    """lambda^E [1]."""
    lr: float = 5e-4
    """Learning rate [1e-4]."""


RIDGES = (  # mean x, y, standard deviation x, y, and height, in units in which the box is [-1, 1]^2
    (0.5, 0.5, 0.75, 0.1, 1.0),
    (0.0, 0.2, 0.1, 0.75, 0.8),
    (-0.375, -0.5, 0.75, 0.1, 0.55),
)


def reward_map(position: Tensor) -> Tensor:
    """r(x, y): the highest of three ridges, steepened, on a slope; -6 outside the box."""
    x, y = (position / 10).unbind(-1)
    ridges = [
        height / 3 * (Normal(mean_x, std_x).log_prob(x) + Normal(mean_y, std_y).log_prob(y)).exp()
        for mean_x, mean_y, std_x, std_y, height in RIDGES
    ]
    inside = 4 * (1 - (1 - torch.stack(ridges).amax(0)) ** 4) - 4.5 + (x + y) / 4
    return torch.where(position.abs().amax(-1) <= 10, inside, -6.0)


class MountainHike:
    """N hikes (Sec. 4.1), each cut after 75 steps and restarted in the same step."""

    def __init__(self, n: int, sigma: float, seed: int) -> None:
        self.n, self.sigma = n, sigma
        self.generator = Generator().manual_seed(seed)
        start, _, _, look_start = torch.randn(4, n, 2, generator=self.generator)
        self.position = start - 8.5
        self.o_1 = self.position + sigma * look_start
        self.age, self.ret = torch.zeros(n, dtype=torch.long), torch.zeros(n)
        self.finished = deque(maxlen=200)  # returns of the last episodes

    def step(self, a_t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What is seen next, the reward, who was cut, and what those saw last."""
        start, move, look, look_start = torch.randn(4, self.n, 2, generator=self.generator)
        length = a_t.norm(dim=-1, keepdim=True)
        reached = self.position + a_t * (0.5 / length).clamp(max=1) + 0.25 * move
        reward = reward_map(reached) - 0.01 * length[:, 0]
        final_obs = reached + self.sigma * look
        truncated = self.age == 74
        self.position = torch.where(truncated[:, None], start - 8.5, reached)
        o_tp1 = torch.where(truncated[:, None], self.position + self.sigma * look_start, final_obs)
        self.finished.extend((self.ret + reward)[truncated].tolist())
        self.ret = torch.where(truncated, 0, self.ret + reward)
        self.age = torch.where(truncated, 0, self.age + 1)
        return o_tp1, reward, truncated, final_obs


def mlp(*sizes: int) -> nn.Sequential:
    """Linear layers, a ReLU behind each."""
    return nn.Sequential(*(f for i, o in pairwise(sizes) for f in (nn.Linear(i, o), nn.ReLU())))


class GaussianNet(nn.Module):
    """A normal law: joint layers on all inputs, a head for the mean, a head for the variance."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.joint = mlp(*sizes[:-1])
        self.mean, self.var = nn.Linear(*sizes[-2:]), nn.Linear(*sizes[-2:])

    def forward(self, *inputs: Tensor) -> Independent:
        hidden = self.joint(torch.cat(inputs, -1))
        var = F.softplus(self.var(hidden)) + 1e-4  # a floor, or densities could grow without bound
        return Independent(Normal(self.mean(hidden), var.sqrt()), 1)


class Agent(nn.Module):
    """Model, proposal and summary (Sec. 3.2, 3.3); policy and value on the summary."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        h, z, e = c.h_dim, c.z_dim, c.embed_dim
        self.embed_obs, self.embed_action, self.embed_latent = mlp(2, e, e), mlp(2, e), mlp(z, h)
        self.proposal, self.prior = GaussianNet(h + e + e, h, z), GaussianNet(h + e, h, z)
        self.decoder = GaussianNet(h + h + e, e, e, 2)
        self.transition, self.summary = nn.GRUCell(h + e + e, h), nn.GRUCell(h + h + 1, h)
        self.policy_mean, self.value = nn.Linear(h, 2), nn.Linear(h, 1)
        self.policy_log_std, self.mean_bound = nn.Parameter(torch.zeros(2)), c.mean_bound
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.orthogonal_(layer.weight, math.sqrt(2))
                nn.init.zeros_(layer.bias)
        for p in self.transition.parameters():
            nn.init.zeros_(p) if p.ndim == 1 else nn.init.orthogonal_(p)
        self.policy_mean.weight.data *= 0.01  # begin without a preferred direction

    def forward(self, h: Tensor, log_w: Tensor, a_tm1: Tensor, o_t: Tensor, generator: Generator):
        """Update the belief (Alg. 1) and act on its summary; the value is the last result."""
        n, k = log_w.shape
        a = self.embed_action(a_tm1)[:, None].expand(n, k, -1)
        x = self.embed_obs(o_t)[:, None].expand(n, k, -1)
        # Systematic resampling: K even positions, each in some particle's share of the weight.
        u = torch.rand(n, k, generator=generator)[:, :1]  # other schemes would use all K
        positions, ends = (u + torch.arange(k)) / k, log_w.softmax(-1).cumsum(-1)
        ancestors = (ends[:, None, :-1] <= positions[:, :, None]).sum(-1)  # Eq. 15
        h_tm1 = h[torch.arange(n)[:, None], ancestors]
        q = self.proposal(h_tm1, x, a)
        z = q.mean + q.stddev * torch.randn(q.mean.shape, generator=generator)  # Eq. 16
        e = self.embed_latent(z)
        h_t = self.transition(torch.cat([e, x, a], -1).flatten(0, 1), h_tm1.flatten(0, 1))
        h_t = h_t.unflatten(0, (n, k))  # Eq. 17
        log_p_o = self.decoder(e, h_tm1, a).log_prob(o_t[:, None])
        log_w = self.prior(h_tm1, a).log_prob(z) + log_p_o - q.log_prob(z)  # Eq. 18
        model_loss = math.log(k) - log_w.logsumexp(-1)  # Eq. 19

        particles = torch.cat([h_t, e, log_w.softmax(-1)[..., None]], -1)
        feature = torch.zeros_like(h_t[:, 0])
        for i in range(k):
            feature = self.summary(particles[:, i], feature)
        mean, bound = self.policy_mean(feature), self.mean_bound
        if bound is not None:  # shorten the mean, keep its direction
            length = mean.norm(dim=-1, keepdim=True)
            mean = F.normalize(mean, dim=-1) * bound * torch.tanh(length / bound)
        policy = Independent(Normal(mean, self.policy_log_std.exp()), 1)
        a_t = (mean + policy.stddev * torch.randn(mean.shape, generator=generator)).detach()
        log_w = log_w.detach()  # the next ancestors are drawn without gradient
        value = self.value(feature)[:, 0]
        return h_t, log_w, a_t, policy.log_prob(a_t), policy.entropy(), model_loss, value


def segment(c: Config, act: Callable, worlds: MountainHike, carry: tuple) -> tuple[tuple, tuple]:
    """n_s steps in every world: the four terms of their loss, T N each, and the next carry."""
    rows, returns = [], []
    for _ in range(c.n_steps):
        h, log_w, a_t, *outputs = act(carry)
        o_tp1, reward, truncated, final_obs = worlds.step(a_t)
        v_end = torch.zeros_like(reward)
        if c.bootstrap_cuts and truncated.any():
            with torch.no_grad():
                v_end = torch.where(truncated, act((h, log_w, a_t, final_obs))[-1], 0)
        rows.append((reward, truncated, v_end, *outputs))
        first = truncated[:, None]  # an episode begins with an empty belief and no action
        h, log_w = h.masked_fill(first[..., None], 0), log_w.masked_fill(first, 0)
        carry = (h, log_w, a_t.masked_fill(first, 0), o_tp1)

    with torch.no_grad():  # a target, not a prediction: the V^- of Eq. 8
        ret = act(carry)[-1]
    for reward, truncated, v_end, *_ in reversed(rows):
        ret = c.reward_scale * reward + c.gamma * torch.where(truncated, v_end, ret)
        returns.insert(0, ret)
    *_, log_prob, entropy, model_loss, value = map(torch.stack, zip(*rows, strict=True))
    adv = torch.stack(returns) - value  # Eq. 8
    weight = adv.detach()  # the critic is judged by its own term alone
    if c.normalise_advantage:
        weight = (weight - weight.mean()) / (weight.std(correction=0) + 1e-6)
    l_a, l_v, l_h = -log_prob * weight, adv.square(), -entropy  # Eq. 9, Eq. 10, Eq. 11
    return (l_a, l_h, l_v, model_loss), carry


def train(c: Config, agent: Agent, worlds: MountainHike, generator: Generator) -> Iterator:
    """Alg. 3 without end: after each update, the terms of its loss and their weighted sum."""
    optimiser = torch.optim.RMSprop(agent.parameters(), c.lr, alpha=0.99, eps=1e-5)
    h_0 = torch.zeros(c.n_envs, c.n_particles, c.h_dim)
    carry = (h_0, h_0[..., 0], torch.zeros(c.n_envs, 2), worlds.o_1)  # h, log_w, a_tm1, o_t
    for update in count(1):
        # Later gradients pass here again, so work on copies that no optimiser step will change.
        live = {name: p.clone() for name, p in agent.named_parameters()}
        act = partial(functional_call, agent, live, kwargs={"generator": generator})
        terms, carry = segment(c, act, worlds, carry)
        l_a, l_h, l_v, l_e = (term.mean() for term in terms)
        total = l_a + c.entropy_weight * l_h + c.value_weight * l_v + c.elbo_weight * l_e  # Eq. 20
        optimiser.zero_grad()
        closes = update % (c.n_grad // c.n_steps) == 0
        total.backward(retain_graph=not closes)
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimiser.step()
        if closes:  # the window of n_g steps is full
            carry = tuple(x.detach() for x in carry)
        yield terms, total


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100_000, help="steps in all worlds together")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, worlds and agent")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the tensors are too small to be shared out
    torch.manual_seed(args.seed)
    c = Config()
    worlds = MountainHike(c.n_envs, c.sigma, args.seed)
    # Not the worlds' seed: the agent's noise would repeat the noise of the world.
    updates = train(c, Agent(c), worlds, Generator().manual_seed(10_000 + args.seed))
    for step in range(c.n_envs * c.n_steps, args.steps + 1, c.n_envs * c.n_steps):
        (*_, model_loss), _ = next(updates)
        if step % (25 * c.n_envs * c.n_steps) == 0:
            ret, nats = torch.tensor([*worlds.finished]).mean(), model_loss.mean()
            print(f"step {step:9,}  return {ret:7.1f}  model loss {nats:6.2f} nats per step")
