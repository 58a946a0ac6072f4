"""From settings to objects."""

import numpy as np
import torch

from dvrl.agents.actor_critic import ActorCritic
from dvrl.chance import WHOLE, Share, stream
from dvrl.nets.spaces import Spec
from dvrl.runs.config import RunConfig
from dvrl.runs.errors import UsageError

AGENT, WEIGHTS = 1, 2


def stream_seed(seed: int, stream: int) -> int:
    """A seed for one of a run's streams of chance. Worlds take the run's seed itself; if the
    agent did too, the noise of its actions would repeat the noise of the world."""
    return int(np.random.SeedSequence([seed, stream]).generate_state(1)[0])


def agent_generator(seed: int, device: torch.device, share: Share = WHOLE) -> torch.Generator:
    """The agent's chance: resampling, z, actions."""
    return stream(stream_seed(seed, AGENT), device, share)


def world_spec(config: RunConfig) -> Spec:
    """Sizes of the world's observations and actions."""
    try:
        return Spec.from_spaces(*config.world.spaces())
    except ValueError as error:
        raise UsageError(str(error)) from error


def build_agent(config: RunConfig) -> ActorCritic:
    """The agent with its first weights, which depend on the seed alone."""
    spec = world_spec(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(config.seed, WEIGHTS))
        encoder = config.encoder.build(spec)
        policy = spec.policy(
            encoder.feature_dim, config.policy.initial_std, config.policy.mean_bound
        )
        return ActorCritic(encoder, policy, config.policy.batch_norm)


def parameter_count(agent: ActorCritic) -> int:
    return sum(p.numel() for p in agent.parameters())


def choose_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one; asking for one that is not there is an error."""
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError("device cuda was asked for but torch sees no GPU; use --device cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
