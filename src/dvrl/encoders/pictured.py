"""Embeddings of images by kernels: recorded as they are seen, derived for a whole window at once.

`nets.sight.Convolutions` is the specification. Acting leaves every layer behind as it was before it
was normalised, so nothing is computed again; and as only the products on the way back differ in
their weights from segment to segment, all segments go back together.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from dvrl import kernels
from dvrl.core import rows, tree
from dvrl.encoders.embedding import Embedded, Embedding, Sensed
from dvrl.encoders.room import Room
from dvrl.fuse import fusable
from dvrl.nets import norm
from dvrl.nets.picture import (
    Found,
    Geometry,
    Layer,
    Norm,
    Seen,
    Slope,
    behind,
    derived,
    kernels_for,
    narrow,
    narrowing,
    normalised,
    room,
    unnarrow,
    widen,
    widening,
)
from dvrl.nets.sight import Convolutions


class Look(NamedTuple):
    """What was seen in one step, or in T."""

    one: Seen
    two: Seen
    three: Seen
    x: Float[Tensor, "*T N X"]


class Arranged(NamedTuple):
    """A layer's parameters, of one segment or of S."""

    w: Float[Tensor, "*S C T"]
    w_back: Float[Tensor, "*S D T"]
    bias: Float[Tensor, "*S C"]
    weight: Float[Tensor, "*S C"]
    """Of the normalisation, and below its bias."""
    shift: Float[Tensor, "*S C"]


class Layers(NamedTuple):
    """All of them."""

    one: Arranged
    two: Arranged
    three: Arranged


class Pictured(Embedding):
    """phi^o by kernels; phi^a as a small layer, computed anew."""

    def __init__(self, embed_action: nn.Module, embed_obs: Convolutions) -> None:
        super().__init__(embed_action, embed_obs)
        self.shapes = [p.shape for p in embed_obs.parameters()]
        self.norms = [n for n in embed_obs.norms if isinstance(n, norm.BatchNorm)]
        self.geometry: list[tuple[Geometry, Geometry]] = []
        side = embed_obs.side
        for layer in embed_obs.layers:
            assert isinstance(layer, nn.Conv2d)
            c, c_in, width, stride = *layer.weight.shape[:3], layer.stride[0]
            there = narrowing(side, c_in, c, width, stride)
            self.geometry.append((there, widening(there.side, c, c_in, width, stride)))
            side = there.side
        self._of_actions = sum(rows.place(p.shape) for p in embed_action.parameters())
        self._looks: Room[Look] = Room()
        self._passing: Room[Look] = Room()
        self._layers: Room[Layers] = Room()
        self._segment = 0

    def begin(self, rows: Float[Tensor, "S E"]) -> None:
        self.leaves = [
            rows[:, : self._of_actions].detach().requires_grad_(),
            rows[-1, self._of_actions :].detach().requires_grad_(),
        ]
        self._segment = len(rows) - 1
        arranged = self._arrange(self.leaves[1].detach())
        # Never more segments than steps.
        tree.copy(self._layers.at(self._segment, self.length, lambda: arranged), arranged)

    @fusable
    def _arrange(self, row: Float[Tensor, " E"]) -> Layers:
        parts = rows.part(row, self.shapes)
        n, layers = len(self.geometry), []
        for i in range(n):
            (w, bias), (weight, shift) = (parts[j : j + 2] for j in (2 * i, 2 * (n + i)))
            stride = self.geometry[i][0].stride
            layers.append(Arranged(narrow(w), widen(w, stride), bias, weight, shift))
        return Layers(*layers)

    def ahead(self, o_t: Float[Tensor, "N 1 Y X"], t: int | None) -> Float[Tensor, "N X"]:
        if t is None:
            look = self._passing.at(0, 1, lambda: self._blank(o_t))
        else:
            look = self._looks.at(t, self.length, lambda: self._blank(o_t))
        before: Seen | Tensor = o_t.movedim(-3, -1)
        layers = self.layers(slice(self._segment, self._segment + 1))
        for layer, out, n in zip(layers, look[:3], self.norms, strict=True):
            normalised(layer, before, out, (n.mean, n.var) if norm.watching() else None)
            before = out
        kernels_for(o_t).activate(*look.three, look.x)
        return look.x

    def _blank(self, o_t: Tensor) -> Look:
        n = len(o_t)
        one, two, three = (room(there, n, 1, o_t) for there, _ in self.geometry)
        last = self.geometry[-1][0]
        return Look(one, two, three, o_t.new_empty(n, last.c * last.side**2))

    def layers(self, segments: slice) -> list[Layer]:
        """Of some segments."""
        assert self._layers.rows is not None
        return [
            Layer(there, back, a.w[segments], a.w_back[segments], a.bias[segments],
                  Norm(a.weight[segments], a.shift[segments]))
            for (there, back), a in zip(self.geometry, self._layers.rows, strict=True)
        ]  # fmt: skip

    def sense(self, inputs: Sensed, n_steps: int) -> Embedded:
        # As if the window were full: what is compiled is compiled once.
        rest = self.length - len(inputs.a_tm1)
        leaf = F.pad(self.leaves[0], (0, 0, 0, rest // n_steps))
        a = self._sense_actions(leaf, F.pad(inputs.a_tm1, (0, 0, 0, 0, 0, rest)))
        a = a[: len(inputs.a_tm1)]
        return Embedded(a, _Derive.apply(self, inputs.o_t, self.leaves[1]))

    @fusable
    def _sense_actions(
        self, leaf: Float[Tensor, "S E"], a_tm1: Float[Tensor, "T N A"]
    ) -> Float[Tensor, "T N D"]:
        names = [name for name, _ in self.embed_action.named_parameters()]
        shapes = [p.shape for p in self.embed_action.parameters()]

        def embed(given: Float[Tensor, " E"], a: Float[Tensor, "L N A"]) -> Tensor:
            named = dict(zip(names, rows.part(given, shapes), strict=True))
            return functional_call(self.embed_action, named, (a,))

        return torch.vmap(embed)(leaf, a_tm1.unflatten(0, (len(leaf), -1))).flatten(0, 1)

    def joined(self, gradients: Sequence[Tensor]) -> Float[Tensor, "1 E"]:
        of_actions, of_images = gradients
        return torch.cat([of_actions.sum(0), of_images])[None]

    def looks(self, steps: int) -> Look:
        """What was seen, the images of all steps in one row."""
        until = self._looks.until(steps)
        return tree.tree_map(lambda x: x.flatten(0, 1), until)

    def back(
        self, o_t: Float[Tensor, "T N 1 Y X"], d_x: Float[Tensor, "T N X"]
    ) -> Float[Tensor, " E"]:
        """Gradient of the images' parameters, of all segments together."""
        look, layers = self.looks(len(o_t)), self.layers(slice(self._segment + 1))
        slopes = [Slope(*kernels_for(d_x).deactivate(d_x.contiguous(), *look.three))]
        seen = [o_t.flatten(0, 1).movedim(-3, -1), *look[:3]]
        found: list[Found] = []
        for i in reversed(range(3)):
            found.append(derived(layers[i], seen[i], seen[i + 1], slopes[-1]))
            if i:
                slopes.append(behind(layers[i], slopes[-1].d, seen[i]))
        kernels.meet(d_x)
        of_layers, of_norms = [], []
        for i, f in enumerate(reversed(found)):
            bias, weight = f.sums.sum(0)
            of_norms += [weight, bias]
            # What is normalised does not depend on a bias before it.
            of_layers += [unnarrow(f.w, self.shapes[2 * i]), torch.zeros_like(bias)]
        return rows.join([*of_layers, *of_norms])


class _Derive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embedding: Pictured, o_t: Tensor, leaf: Tensor) -> Tensor:
        ctx.given = embedding, o_t
        return embedding.looks(len(o_t)).x.unflatten(0, (len(o_t), -1))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        embedding, o_t = ctx.given
        return None, None, embedding.back(o_t, *grads)
