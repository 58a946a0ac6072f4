"""From settings to objects."""

import numpy as np
import torch

from dvrl.agents.actor_critic import ActorCritic
from dvrl.nets.spaces import Spec
from dvrl.runs.config import RunConfig


def world_spec(config: RunConfig) -> Spec:
    """Sizes of the world's observations and actions."""
    return Spec.from_spaces(*config.world.spaces())


def build_agent(config: RunConfig) -> ActorCritic:
    """The agent with its first weights, which depend on the seed alone."""
    spec = world_spec(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        encoder = config.encoder.build(spec)
        policy = spec.policy(
            encoder.feature_dim, config.policy.initial_std, config.policy.mean_bound
        )
        return ActorCritic(encoder, policy)


def parameter_count(agent: ActorCritic) -> int:
    return sum(p.numel() for p in agent.parameters())


def agent_generator(seed: int, device: torch.device) -> torch.Generator:
    """The agent's chance. Worlds take `seed` itself, so the agent's stream must begin elsewhere:
    with one seed for both, the noise of actions would repeat the noise of the world."""
    state = int(np.random.SeedSequence([seed, 1]).generate_state(1)[0])
    return torch.Generator(device).manual_seed(state)


def choose_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one; asking for one that is not there is an error."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda was asked for but torch sees no GPU; use --device cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
