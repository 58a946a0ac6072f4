"""A GRU over a row of inputs known beforehand, from state zero; its last state is the result.

Autograd would visit every input's every operation. Derived by hand, the way back is one product an
input, and the weights' gradient one product in all. The scan is an operator of its own, opaque to
compilers: its loop is better one kernel on a GPU than L fused steps. Layout of gates: core.gru.
"""

from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dvrl import kernels
from dvrl.core import gru


def scan(
    gates_i: Float[Tensor, "N L G"], weight: Float[Tensor, "G H"], bias: Float[Tensor, " G"]
) -> Float[Tensor, "N H"]:
    """The state after reading all L inputs; `weight`, `bias`: (r, u, n)."""
    if torch.is_grad_enabled():
        return scan_taped(gates_i, weight, bias)[0]
    return scan_last(gates_i, weight, bias)


def _scan(gates_i: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The results of `scan_taped` in as few operations as can be: on a CPU these small steps cost
    more by being called than by being computed."""
    last, before, tape = _taped_room(gates_i, weight)
    size = weight.shape[1]
    of_state, ru = tape[..., size:].unbind(1), tape[..., size : 3 * size].unbind(1)
    n, r, u, n_h = (part.unbind(1) for part in tape.chunk(4, -1))
    n_i, ru_i = gates_i[..., :size].unbind(1), gates_i[..., size:].unbind(1)
    state, transposed = (*before.unbind(1), last), weight.t()
    state[0].zero_()
    for i in range(len(n)):
        torch.addmm(bias, state[i], transposed, out=of_state[i])
        ru[i].add_(ru_i[i]).sigmoid_()
        torch.addcmul(n_i[i], r[i], n_h[i], out=n[i]).tanh_()
        torch.lerp(n[i], state[i], u[i], out=state[i + 1])
    return last, before, tape


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
    slopes = gru.slopes(gru.GruTape(ru, n, n_h), before)
    at = [gru.GruSlopes(*parts) for parts in zip(*(s.unbind(1) for s in slopes), strict=True)]
    d_gates = torch.empty_like(tape)
    gates, d_h = d_gates.unbind(1), d_last
    for i in reversed(range(before.shape[1])):
        bypass = gru.step_backward(d_h, at[i], gates[i])
        d_h = bypass.addmm_(gates[i][:, size:], weight)
    return d_gates


@scan_last.register_fake
def _(gates_i: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return gates_i.new_empty(gates_i.shape[0], weight.shape[1])


def _taped_room(gates_i: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    n, length, size = *gates_i.shape[:2], weight.shape[1]
    return (
        gates_i.new_empty(n, size),
        gates_i.new_empty(n, length, size),
        gates_i.new_empty(n, length, 4 * size),
    )


@scan_taped.register_fake
def _(gates_i: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _taped_room(gates_i, weight)


@scan_back.register_fake
def _(d_last: Tensor, before: Tensor, tape: Tensor, weight: Tensor) -> Tensor:
    return torch.empty_like(tape)


@scan_last.register_kernel("cuda")
def _(gates_i: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    found = _kernels(weight)
    if found is None:
        return scan_last._init_fn(gates_i, weight, bias)
    last = gates_i.new_empty(gates_i.shape[0], weight.shape[1])
    found.forward(gates_i, weight, bias, (last,), tf32=kernels.tf32())
    return last


@scan_taped.register_kernel("cuda")
def _(gates_i: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    found = _kernels(weight)
    if found is None:
        return scan_taped._init_fn(gates_i, weight, bias)
    results = _taped_room(gates_i, weight)
    found.forward(gates_i, weight, bias, results, tf32=kernels.tf32())
    return results


@scan_back.register_kernel("cuda")
def _(d_last: Tensor, before: Tensor, tape: Tensor, weight: Tensor) -> Tensor:
    found = _kernels(weight)
    if found is None:
        return scan_back._init_fn(d_last, before, tape, weight)
    return found.backward(d_last, before, tape, weight, tf32=kernels.tf32())


def _kernels(weight: Tensor) -> ModuleType | None:
    """The Triton kernels."""
    return kernels.find("dvrl.core.scan_triton", weight)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(inputs[1], *output[1:])


def _back(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    weight, before, tape = ctx.saved_tensors
    d_gates = scan_back(grads[0], before, tape, weight)
    size = weight.shape[1]
    d_state = d_gates[..., size:].flatten(0, 1)
    return d_gates[..., : 3 * size], d_state.t() @ before.flatten(0, 1), d_state.sum(0)


scan_taped.register_autograd(_back, setup_context=_keep)
