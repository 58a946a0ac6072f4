"""Embeddings of what was sensed in a gradient window, each segment's by the weights it had.

Gradients of every segment's embeddings are asked for in every update of the window.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.func import functional_call

from dvrl.core import rows
from dvrl.fuse import fusable
from dvrl.nets.sight import Convolutions


class Sensed(NamedTuple):
    """What an encoder was given."""

    a_tm1: Float[Tensor, "T N A"]
    o_t: Float[Tensor, "T N *obs"]
    first: Bool[Tensor, "T N"]
    """Where an episode began: the belief before is not the one it went on from."""


class Embedded(NamedTuple):
    """phi^a and phi^o."""

    a: Float[Tensor, "T N D"]
    x: Float[Tensor, "T N X"]


class Embedding(ABC):
    """phi^a and phi^o in a window."""

    leaves: list[Tensor]
    """Their parameters, as often as there are segments."""

    def __init__(self, embed_action: nn.Module, embed_obs: nn.Module) -> None:
        self.embed_action = embed_action
        self.embed_obs = embed_obs
        self.leaves = []

    def open(self, length: int) -> None:
        """A new window of so many steps."""
        self.length = length

    @abstractmethod
    def begin(self, rows: Float[Tensor, "S E"]) -> None:
        """A new segment; `rows` are the parameters in all segments so far, joined (core.rows)."""

    def ahead(self, o_t: Float[Tensor, "N *obs"], t: int | None) -> Float[Tensor, "N X"] | None:
        """phi^o of step `t` (None: not to be remembered), where it has kernels of its own; else
        whoever acts fuses it with what follows."""
        return None

    @abstractmethod
    def sense(self, inputs: Sensed, n_steps: int) -> Embedded:
        """All steps so far, as functions of the leaves; a segment has `n_steps`."""

    @abstractmethod
    def joined(self, gradients: Sequence[Tensor]) -> Float[Tensor, "S E"]:
        """Gradients of the leaves, a row for each segment; or one row with their sum."""

    def _call(self, given: Float[Tensor, " E"], a_tm1: Tensor, o_t: Tensor) -> Embedded:
        """One segment, with these parameters."""
        parts = iter(rows.part(given, [p.shape for p in self.parameters()]))
        a = functional_call(self.embed_action, _named(self.embed_action, parts), (a_tm1,))
        return Embedded(a, functional_call(self.embed_obs, _named(self.embed_obs, parts), (o_t,)))

    def parameters(self) -> Iterator[Tensor]:
        """In the order in which rows have them."""
        yield from self.embed_action.parameters()
        yield from self.embed_obs.parameters()


def embedding(embed_action: nn.Module, embed_obs: nn.Module) -> Embedding:
    """The way that suits these layers."""
    if isinstance(embed_obs, Convolutions) and embed_obs.by_kernels():
        from dvrl.encoders.pictured import Pictured

        return Pictured(embed_action, embed_obs)
    normed = any(True for m in (embed_action, embed_obs) for _ in m.buffers())
    dear = normed or isinstance(embed_obs, Convolutions)
    return (Retained if dear else Batched)(embed_action, embed_obs)


def _named(module: nn.Module, parts: Iterator[Tensor]) -> dict[str, Tensor]:
    return {name: next(parts) for name, _ in module.named_parameters()}


class Batched(Embedding):
    """All segments at once, computed anew in every update: small layers cost less than a graph."""

    def begin(self, rows: Float[Tensor, "S E"]) -> None:
        self.leaves = [rows.detach().requires_grad_()]

    def sense(self, inputs: Sensed, n_steps: int) -> Embedded:
        return self._sense(self.leaves[0], inputs.a_tm1, inputs.o_t)

    @fusable
    def _sense(self, leaf: Float[Tensor, "S E"], a_tm1: Tensor, o_t: Tensor) -> Embedded:
        steps = a_tm1.shape[:2]
        seen = (x.unflatten(0, (leaf.shape[0], -1)).flatten(1, 2) for x in (a_tm1, o_t))
        return Embedded._make(
            x.view(*steps, *x.shape[2:]) for x in torch.vmap(self._call)(leaf, *seen)
        )

    def joined(self, gradients: Sequence[Tensor]) -> Float[Tensor, "S E"]:
        return gradients[0]


class Retained(Embedding):
    """Each segment once, its graph kept while the window is open: for what is dear to compute, or
    computed from all rows of a step."""

    def __init__(self, embed_action: nn.Module, embed_obs: nn.Module) -> None:
        super().__init__(embed_action, embed_obs)
        self._segments: list[Embedded] = []

    def begin(self, rows: Float[Tensor, "S E"]) -> None:
        if len(rows) == 1:
            self.leaves, self._segments = [], []
        self.leaves.append(rows[-1].detach().clone().requires_grad_())

    def sense(self, inputs: Sensed, n_steps: int) -> Embedded:
        # Copies: the graph outlives this update, and autograd watches memory that others write to.
        newest = (x[-n_steps:].clone() for x in inputs[:2])
        self._segments.append(self._embed(self.leaves[-1], *newest))
        return Embedded._make(torch.cat(parts) for parts in zip(*self._segments, strict=True))

    @fusable
    def _embed(self, leaf: Float[Tensor, " E"], a_tm1: Tensor, o_t: Tensor) -> Embedded:
        return self._call(leaf, a_tm1, o_t)

    def joined(self, gradients: Sequence[Tensor]) -> Float[Tensor, "S E"]:
        return torch.stack(list(gradients))
