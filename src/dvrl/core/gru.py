"""The gated recurrent unit without parameters: a step, its derivative, and a scan over inputs.

Gates come projected. Those of the input are ordered (n, r, u) - new, reset, update - and those of
the state (r, u, n): laid side by side as (n, r, u, n_h) the gradients of both are slices of one
tensor, and each is one operand of one matrix product. Sizes: G = 3H, R = 2H, D = 4H.
"""

from types import ModuleType
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dvrl.core import tree
from dvrl.fuse import fusable


class GruTape(NamedTuple):
    """What a step knew: its activations."""

    ru: Float[Tensor, "*B R"]
    """Reset and update gate."""
    n: Float[Tensor, "*B H"]
    n_h: Float[Tensor, "*B H"]
    """What the state offers the new value before the reset gate."""


class GruSlopes(NamedTuple):
    """The step's derivative: everything the way back needs to multiply by."""

    n: Float[Tensor, "*B H"]
    u: Float[Tensor, "*B H"]
    r: Float[Tensor, "*B H"]
    reset: Float[Tensor, "*B H"]
    keep: Float[Tensor, "*B H"]


def step(
    gates_i: Float[Tensor, "*B G"], gates_h: Float[Tensor, "*B G"], h: Float[Tensor, "*B H"]
) -> tuple[Float[Tensor, "*B H"], GruTape]:
    """h' = n + u (h - n) with n = tanh(n_i + r n_h); and what was known on the way."""
    size = h.shape[-1]
    ru = torch.sigmoid(gates_i[..., size:] + gates_h[..., : 2 * size])
    n_h = gates_h[..., 2 * size :]
    n = torch.tanh(torch.addcmul(gates_i[..., :size], ru[..., :size], n_h))
    return torch.lerp(n, h, ru[..., size:]), GruTape(ru, n, n_h)


@fusable
def slopes(tape: GruTape, h: Float[Tensor, "*B H"]) -> GruSlopes:
    """The derivative at a step that began in state `h`."""
    r, u = tape.ru.chunk(2, -1)
    rest_r, rest_u = (1 - tape.ru).chunk(2, -1)
    return GruSlopes(
        n=rest_u * (1 - tape.n.square()),
        u=(h - tape.n) * u * rest_u,
        r=tape.n_h * r * rest_r,
        reset=r,
        keep=u,
    )


def step_backward(
    d_h: Float[Tensor, "*B H"], slope: GruSlopes
) -> tuple[Float[Tensor, "*B D"], Float[Tensor, "*B H"]]:
    """Gradients of the gates (n, r, u, n_h); and of the old state what bypassed them."""
    d_n = d_h * slope.n
    gates = torch.cat([d_n, d_n * slope.r, d_h * slope.u, d_n * slope.reset], -1)
    return gates, d_h * slope.keep


def scan(
    gates_i: Float[Tensor, "N L G"], weight: Float[Tensor, "G H"], bias: Float[Tensor, " G"]
) -> Float[Tensor, "N H"]:
    """The state after reading all L inputs from state zero; `weight`, `bias`: (r, u, n)."""
    if torch.is_grad_enabled():
        return scan_taped(gates_i, weight, bias)[0]
    return scan_last(gates_i, weight, bias)


def replay(
    gates_i: Float[Tensor, "T N G"],
    h_in: Float[Tensor, "N H"],
    weight: Float[Tensor, "G H"],
    bias: Float[Tensor, " G"],
    first: Bool[Tensor, "T N"],
    h_tm1: Float[Tensor, "T N H"],
    h: Float[Tensor, "T N H"],
    tape: GruTape,
) -> Float[Tensor, "T N H"]:
    """Recorded steps as a function of the first four; no gradient passes where `first`."""
    return _Replay.apply(first, h_tm1, h, tape, gates_i, h_in, weight, bias)  # type: ignore[no-any-return]


# Autograd would visit every step's every operation. Derived by hand, the way back is one product a
# step, and the weights' gradient one product in all. The scan is an operator of its own, opaque to
# compilers: its loop is better one kernel on a GPU than L fused steps.


def _scan(gates_i: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`scan_taped`, everything written where it is to stay, in as few operations as can be: on a
    CPU these small steps cost more by being called than by being computed."""
    length, size = gates_i.shape[1], weight.shape[1]
    states = gates_i.new_empty(length + 1, gates_i.shape[0], size)
    tape = gates_i.new_empty(length, gates_i.shape[0], 4 * size)
    inputs = gates_i.transpose(0, 1)
    of_state, ru = tape[..., size:].unbind(), tape[..., size : 3 * size].unbind()
    n, r, u, n_h = (part.unbind() for part in tape.chunk(4, -1))
    n_i, ru_i = inputs[..., :size].unbind(), inputs[..., size:].unbind()
    state, transposed = states.unbind(), weight.t()
    state[0].zero_()
    for i in range(length):
        torch.addmm(bias, state[i], transposed, out=of_state[i])
        ru[i].add_(ru_i[i]).sigmoid_()
        torch.addcmul(n_i[i], r[i], n_h[i], out=n[i]).tanh_()
        torch.lerp(n[i], state[i], u[i], out=state[i + 1])
    before = states[:-1].transpose(0, 1).contiguous()
    return states[-1].clone(), before, tape.transpose(0, 1).contiguous()


@torch.library.custom_op("dvrl::gru_scan_last", mutates_args=())
def scan_last(gates_i: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The last state alone."""
    return _scan(gates_i, weight, bias)[0]


@torch.library.custom_op("dvrl::gru_scan_taped", mutates_args=())
def scan_taped(gates_i: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The last state; the states before each input `N L H`; and the activations (n, r, u, n_h)."""
    return _scan(gates_i, weight, bias)


@torch.library.custom_op("dvrl::gru_scan_back", mutates_args=())
def scan_back(d_last: Tensor, before: Tensor, tape: Tensor, weight: Tensor) -> Tensor:
    """Gradients of the gates (n, r, u, n_h), `N L 4H`."""
    size = weight.shape[1]
    n, ru, n_h = tape.split([size, 2 * size, size], -1)
    slope = slopes(GruTape(ru, n, n_h), before)
    d_gates, _ = _walk_back(tree.tree_map(lambda s: s.transpose(0, 1), slope), weight, d_last)
    return d_gates.transpose(0, 1).contiguous()


@scan_last.register_fake
def _(gates_i: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return gates_i.new_empty(gates_i.shape[0], weight.shape[1])


@scan_taped.register_fake
def _(gates_i: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    n, length, size = *gates_i.shape[:2], weight.shape[1]
    return (
        gates_i.new_empty(n, size),
        gates_i.new_empty(n, length, size),
        gates_i.new_empty(n, length, 4 * size),
    )


@scan_back.register_fake
def _(d_last: Tensor, before: Tensor, tape: Tensor, weight: Tensor) -> Tensor:
    return torch.empty_like(tape)


@scan_last.register_kernel("cuda")
def _(gates_i: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    kernels = _kernels(weight)
    if kernels is None:
        return scan_last._init_fn(gates_i, weight, bias)
    return kernels.forward(gates_i, weight, bias, taped=False, tf32=_tf32())[0]


@scan_taped.register_kernel("cuda")
def _(gates_i: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    kernels = _kernels(weight)
    if kernels is None:
        return scan_taped._init_fn(gates_i, weight, bias)
    return kernels.forward(gates_i, weight, bias, taped=True, tf32=_tf32())


@scan_back.register_kernel("cuda")
def _(d_last: Tensor, before: Tensor, tape: Tensor, weight: Tensor) -> Tensor:
    kernels = _kernels(weight)
    if kernels is None:
        return scan_back._init_fn(d_last, before, tape, weight)
    return kernels.backward(d_last, before, tape, weight, tf32=_tf32())


def _tf32() -> bool:
    """Whether matrix products on this GPU may be rounded to tf32."""
    return bool(torch.backends.cuda.matmul.allow_tf32)


def _kernels(weight: Tensor) -> ModuleType | None:
    """The Triton kernels, where there is Triton and they know the size and the precision."""
    try:
        from dvrl.core import scan_triton
    except ImportError:
        return None
    fits = scan_triton.supports(weight.shape[1]) and weight.dtype == torch.float32
    return scan_triton if fits else None


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(inputs[1], *output[1:])


def _back(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    weight, before, tape = ctx.saved_tensors
    d_gates = scan_back(grads[0], before, tape, weight)
    d_weight, d_bias = _weight_gradients(d_gates, before)
    return d_gates[..., : 3 * weight.shape[1]], d_weight, d_bias


scan_taped.register_autograd(_back, setup_context=_keep)


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, first: Tensor, h_tm1: Tensor, h: Tensor, tape: GruTape, *inputs: Tensor
    ) -> Tensor:
        ctx.slopes = slopes(tape, h_tm1)
        ctx.first, ctx.h_tm1, ctx.weight = first, h_tm1, inputs[2]
        return h.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        d_gates, d_in = _walk_back(ctx.slopes, ctx.weight, d_all=grads[0], first=ctx.first)
        d_weight, d_bias = _weight_gradients(d_gates, ctx.h_tm1)
        return None, None, None, None, d_gates[..., : -d_in.shape[-1]], d_in, d_weight, d_bias


@fusable
def _walk_back(
    slope: GruSlopes,
    weight: Tensor,
    d_last: Tensor | None = None,
    d_all: Tensor | None = None,
    first: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradients of all gates `L N 4H` and of the state before the first step."""
    length, n, size = slope.n.shape
    d_gates = []
    d_h = slope.n.new_zeros(n, size) if d_last is None else d_last
    for i in reversed(range(length)):
        d_h = d_h if d_all is None else d_h + d_all[i]
        gates, bypass = step_backward(d_h, tree.at(slope, i))
        d_h = torch.addmm(bypass, gates[:, size:], weight)
        d_h = d_h if first is None else d_h.masked_fill(first[i, :, None], 0.0)
        d_gates.append(gates)
    return torch.stack(d_gates[::-1]), d_h


def _weight_gradients(d_gates: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    size = before.shape[-1]
    d_state = d_gates[..., size:].flatten(0, 1)
    return d_state.t() @ before.flatten(0, 1), d_state.sum(0)
