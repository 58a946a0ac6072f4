"""Encoders that act first and derive later: no gradients step by step, then whole segments at once.

A gradient window is a row of segments, with an optimiser's step between each and the next. What
the way back through old segments needs - their weights, inputs and slopes - lies in memory that is
used again in every window; no graph of them is kept. So every update is a function of its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from dvrl.core import tree
from dvrl.encoders.base import Belief, Update
from dvrl.encoders.embedding import Sensed, embedding
from dvrl.encoders.packing import Acting, Derived, Packing
from dvrl.encoders.room import Room


class Replayed(NamedTuple):
    """The newest segment as a function of the recorder's leaves."""

    feature: Float[Tensor, "L N F"]
    loss: Float[Tensor, "L N"]


class _Row(NamedTuple):
    parameters: Float[Tensor, "*S Q"]


class Recorder(ABC, Generic[Belief, Derived, Acting]):
    """Embeddings of what was sensed are derived by autograd, with the weights each segment had; of
    all other packed parameters the gradient is asked for in the newest segment alone."""

    weights: Derived
    """Of the newest segment."""
    acting: Acting

    def __init__(
        self, encoder: nn.Module, embed_action: nn.Module, embed_obs: nn.Module, *packed: nn.Module
    ) -> None:
        self.embed_action = embed_action
        self.embed_obs = embed_obs
        embeddings, others = (
            [p for m in modules for p in m.parameters()]
            for modules in ((embed_action, embed_obs), packed)
        )
        self.packing: Packing[Derived, Acting] = Packing(encoder, embeddings, others, self._pack)
        self.embedding = embedding(embed_action, embed_obs)
        self._rows: Room[_Row] = Room()
        self._sensed: Room[Sensed] = Room()
        self._given: list[tuple[Tensor, Tensor]] = []
        self._leaf: Float[Tensor, " D"]

    @abstractmethod
    def _pack(self) -> tuple[Derived, Acting]:
        """The packed modules' parameters; and once more, as acting wants them."""

    def open(self, segments: int, n_steps: int) -> None:
        """A new window."""
        self.segments, self.n_steps = segments, n_steps
        self.embedding.open(self._length)
        self.segment = -1
        self.step_count = 0

    def begin(self, flat: Float[Tensor, " P"]) -> None:
        """A new segment, with these parameters: `packing.parameters`, joined (core.rows)."""
        self.segment += 1
        self._given.clear()
        like = self.packing.sizes
        row = self._rows.at(self.segment, self.segments, lambda: _Row(flat.new_empty(sum(like))))
        self.packing.fill(row.parameters, flat)
        window = self._rows.until(self.segment + 1).parameters.detach()
        embeddings, derived, acting = window.split(like, -1)
        self.embedding.begin(embeddings)
        self._leaf = derived[-1].detach().requires_grad_()
        self.weights = self.packing.derived(self._leaf)
        self.acting = self.packing.acting(acting[-1])
        self._all_weights = self.packing.derived(derived)

    @property
    def leaves(self) -> list[Tensor]:
        """Where gradients meet: the embeddings' of every segment so far; the others', packed."""
        return [*self.embedding.leaves, self._leaf]

    def gradient(
        self, of_leaves: Sequence[Tensor], others: Sequence[Tensor]
    ) -> Float[Tensor, " P"]:
        """That of `packing.parameters`, and of others behind them, joined (core.rows)."""
        *embeddings, derived = of_leaves
        return self.packing.gradient(self.embedding.joined(embeddings), derived, others)

    def noise(self, n: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Chance for one step of `n` environments, as `BeliefEncoder.update` draws it."""
        return ()

    def step(
        self,
        belief: Belief,
        a_tm1: Float[Tensor, "N A"],
        o_t: Float[Tensor, "N *obs"],
        noise: tuple[Tensor, ...],
    ) -> Update:
        """What `BeliefEncoder.update` gives, without gradients, and remembered."""
        self._given.append((a_tm1, o_t))
        update = self._step(belief, a_tm1, o_t, noise, self.step_count)
        self.step_count += 1
        return update

    def look(
        self,
        belief: Belief,
        a_tm1: Float[Tensor, "N A"],
        o_t: Float[Tensor, "N *obs"],
        noise: tuple[Tensor, ...],
    ) -> Update:
        """The same, not remembered."""
        return self._step(belief, a_tm1, o_t, noise, None)

    @abstractmethod
    def _step(
        self,
        belief: Belief,
        a_tm1: Float[Tensor, "N A"],
        o_t: Float[Tensor, "N *obs"],
        noise: tuple[Tensor, ...],
        t: int | None,
    ) -> Update:
        """Step `t` of the window; None: not to be remembered."""

    @abstractmethod
    def replay(self, first: Bool[Tensor, "L N"]) -> Replayed:
        """The newest segment; `first`: where its steps were the first of an episode."""

    @property
    def ancestors(self) -> Tensor | None:
        """Those of the window's particles, where there are any: chosen by chance and, where two are
        as good as equal, by rounding."""
        return None

    @property
    def _length(self) -> int:
        return self.segments * self.n_steps

    def _inputs(self, first: Bool[Tensor, "L N"]) -> Sensed:
        """What was given in all steps of the window so far."""
        a_tm1, o_t = zip(*self._given, strict=True)
        place = self._sensed.at(self.segment, self.segments, lambda: _blank(a_tm1, o_t, first))
        torch.stack(a_tm1, out=place.a_tm1)
        torch.stack(o_t, out=place.o_t)
        place.first.copy_(first)
        return tree.tree_map(lambda x: x.flatten(0, 1), self._sensed.until(self.segment + 1))


def _blank(a_tm1: Sequence[Tensor], o_t: Sequence[Tensor], first: Tensor) -> Sensed:
    a, o = (x[0].new_empty(len(x), *x[0].shape) for x in (a_tm1, o_t))
    return Sensed(a, o, torch.empty_like(first))
