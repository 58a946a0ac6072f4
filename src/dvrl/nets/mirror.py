"""The decoder of images by kernels: what screens say of particles, and the way back.

`nets.sight.ImageDecoder` is the specification; what stands before its convolutions is left to it.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dvrl import kernels
from dvrl.fuse import fusable
from dvrl.nets import norm
from dvrl.nets.picture import (
    Layer,
    Norm,
    Seen,
    behind,
    derived,
    kernels_for,
    narrow,
    narrowing,
    normalised,
    room,
    unwiden,
    widen,
    widening,
)
from dvrl.nets.sight import SMALLEST, Enlarge, ImageDecoder


class Mirror:
    """A decoder with the weights it has now."""

    def __init__(self, decoder: ImageDecoder) -> None:
        self.enlarging = [layer for layer in decoder.layers if isinstance(layer, Enlarge)]
        self.norms = [n for n in decoder.norms[1:] if isinstance(n, norm.BatchNorm)]
        self.layers, side = [], SMALLEST[1]
        for i, e in enumerate(self.enlarging):
            c_in, c, width, stride = *e.weight.shape[:3], e.stride[0]
            there = widening(side, c_in, c, width, stride)
            side = there.side * stride
            back = narrowing(side, c, c_in, width, stride)
            assert e.bias is not None
            w, n = e.weight.detach()[None], self.norms[i] if i < len(self.norms) else None
            self.layers.append(
                Layer(
                    there, back, widen(w, stride).contiguous(), narrow(w).contiguous(),
                    e.bias.detach()[None],
                    None if n is None else Norm(n.weight.detach()[None], n.bias.detach()[None]),
                )
            )  # fmt: skip

    def log_prob(
        self, x: Float[Tensor, "*G N K 7 7 32"], o_t: Float[Tensor, "*G N 1 84 84"]
    ) -> Float[Tensor, "*G N K"]:
        """log p(o_t) of every particle, given its smallest image; steps in front, if any."""
        steps = x.shape[:-5].numel()
        given = x.flatten(0, -4), o_t.flatten(0, -4).movedim(-3, -1), steps
        if torch.is_grad_enabled():
            parameters = [p for e in self.enlarging for p in (e.weight, e.bias)]
            parameters += [p for n in self.norms for p in (n.weight, n.bias)]
            log_p = _LogProb.apply(self, *given, *parameters)
        else:
            log_p = self.look(*given, keep=False)[0]
        return log_p.view(x.shape[:-3])

    def look(
        self, x: Float[Tensor, "I 7 7 C"], o: Float[Tensor, "J 84 84 1"], steps: int, keep: bool
    ) -> tuple[Float[Tensor, " I"], Float[Tensor, "I 84 84 1"] | None, list[Seen]]:
        """Log-probabilities; the log-odds, if they are to be kept; and the layers before them."""
        before: Seen | Tensor = x
        seen = []
        for layer, n in zip(self.layers, self.norms, strict=False):
            out = room(layer.there, len(x), steps, x)
            normalised(layer, before, out, (n.mean, n.var) if norm.watching() else None)
            seen.append(out)
            before = out
        last, k = self.layers[-1], kernels_for(x)
        return (*k.pixels(last.there, *seen[-1], last.w, last.bias, o, keep), seen)

    def back(
        self,
        x: Float[Tensor, "I 7 7 C"],
        seen: list[Seen],
        d: Float[Tensor, "I 84 84 1"],
    ) -> tuple[Tensor, ...]:
        """Gradients of `x` and of all parameters, where the log-odds have gradient `d`."""
        last, k = self.layers[-1], kernels_for(x)
        inputs = [x, *seen]
        with kernels.beside(d):
            of_last = d.sum()[None], k.of_weights(last.there, *seen[-1], d, len(seen[-1].fix))
        slopes, found, into = [], [], d
        for i in reversed(range(len(seen))):
            slope = behind(self.layers[i + 1], into, seen[i])
            found.append(derived(self.layers[i], inputs[i], seen[i], slope))
            slopes.append(slope)
            into = slope.d
        first, d_x = self.layers[0], torch.empty_like(x)
        k.convolve(first.back, into, None, first.w_back, None, k.PLAIN, len(seen[0].fix), out=d_x)
        kernels.meet(d)
        of_weights, of_norms = [], []
        for i, f in enumerate(reversed(found)):
            bias, weight = f.sums.sum(0)
            of_norms += [weight, bias]
            # What is normalised does not depend on a bias before it.
            of_weights += [self._unwiden(f.w, i), torch.zeros_like(bias)]
        of_weights += [self._unwiden(of_last[1], -1), of_last[0]]
        return d_x, *of_weights, *of_norms

    def _unwiden(self, found: Float[Tensor, "T C"], i: int) -> Tensor:
        layer = self.enlarging[i]
        return unwiden(found, layer.weight.shape, layer.stride[0])


class _LogProb(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, mirror: Mirror, x: Tensor, o: Tensor, steps: int, *parameters: Tensor
    ) -> Tensor:
        log_p, logits, seen = mirror.look(x.detach(), o, steps, keep=True)
        ctx.given = mirror, x.detach(), o, logits, seen
        return log_p

    @staticmethod
    def backward(ctx: Any, d_log_p: Tensor) -> tuple[Any, ...]:
        mirror, x, o, logits, seen = ctx.given
        d = _of_pixels(logits, o, d_log_p)
        d_x, *of_parameters = mirror.back(x, seen, d)
        return None, d_x, None, None, *of_parameters


@fusable
def _of_pixels(
    logits: Float[Tensor, "I Y X C"], o: Float[Tensor, "J Y X C"], d: Float[Tensor, " I"]
) -> Float[Tensor, "I Y X C"]:
    """Gradient of log-odds, where a sum of pixels has gradient `d`."""
    by_row = logits.unflatten(0, (len(o), -1))
    found = (o[:, None] - torch.sigmoid(by_row)) * d.view(len(o), -1, 1, 1, 1)
    return found.view_as(logits)
