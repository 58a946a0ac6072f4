"""The processes that train one run together, or one alone."""

import torch
import torch.distributed as dist
from torch import Tensor

from dvrl.chance import Share


class Group:
    """Process `rank` of `size`; alone, every question is answered at once."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size

    @property
    def share(self) -> Share:
        return Share(self.rank, self.size)

    @property
    def leads(self) -> bool:
        """Whether this process keeps the files."""
        return self.rank == 0

    def mean(self, x: Tensor) -> Tensor:
        """The mean over all processes."""
        if self.size == 1:
            return x
        total = x.detach().clone()
        dist.all_reduce(total)
        return total / self.size

    def rows(self, x: Tensor, axis: int = 0) -> Tensor:
        """The rows of all processes, in order."""
        if self.size == 1:
            return x
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, axis)

    def mine(self, x: Tensor) -> Tensor:
        """This process's rows of all."""
        n = x.shape[0] // self.size
        return x.narrow(0, self.rank * n, n)

    def agree(self, number: int) -> int:
        """What the leading process says."""
        if self.size == 1:
            return number
        said = torch.tensor(number)
        dist.broadcast(said, 0)
        return int(said)


ALONE = Group()
