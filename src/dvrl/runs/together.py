"""One run over several processes, as torchrun starts them."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from dvrl.learners.group import ALONE, Group
from dvrl.runs.config import RunConfig
from dvrl.runs.errors import Interrupted, UsageError

PARTING_SECONDS = 0.3


@contextmanager
def processes(device: torch.device) -> Iterator[Group]:
    """The group this process was started in; alone without torchrun."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE
        return
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    try:
        yield Group(dist.get_rank(), size)
    except Interrupted:  # in all processes
        _part()
        raise
    else:
        _part()
    finally:
        dist.destroy_process_group()


def _part() -> None:
    """Leave together, and not at once.

    The backend's own threads let go of the last tensors a moment after they were sent, and need
    Python for it: if it is on its way out by then, the process is aborted.
    """
    dist.barrier()
    time.sleep(PARTING_SECONDS)


def check_shares(config: RunConfig, n_runs: int, size: int) -> None:
    """Environments must be divisible among the processes, and there must be one run."""
    n_envs = config.learner.n_envs
    if size > 1 and n_runs > 1:
        raise UsageError(
            "several seeds cannot train over several processes; leave out --seeds, or torchrun"
        )
    if n_envs % size:
        raise UsageError(
            f"learner.n_envs is {n_envs} and there are {size} processes; n_envs must be a multiple"
        )
    if config.normalised and n_envs // size < 2:
        raise UsageError(
            f"learner.n_envs is {n_envs} and there are {size} processes; batch norm needs at least "
            "two environments in each"
        )
