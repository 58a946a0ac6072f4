"""The scan over particles: against torch's GRU, and its GPU kernels in Triton's interpreter."""

import pytest
import torch
from torch import nn

from dvrl.core import scan
from dvrl.nets.layers import new_gate_first
from interpreted import cases_checked, needs_triton


def pieces(n: int, length: int, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    shapes = [(n, length, 3 * size), (3 * size, size), (3 * size,)]
    return tuple(torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)


@pytest.mark.parametrize("length", [1, 7])
def test_a_scan_is_torchs_gru_on_the_same_particles(length):
    torch.manual_seed(0)
    theirs = nn.GRU(5, 4, batch_first=True).double()
    x = torch.randn(3, length, 5, dtype=torch.float64, requires_grad=True)
    _, last = theirs(x)
    gates = x @ new_gate_first(theirs.weight_ih_l0).t() + new_gate_first(theirs.bias_ih_l0)
    mine = scan.scan(gates, theirs.weight_hh_l0, theirs.bias_hh_l0)
    torch.testing.assert_close(mine, last[0])
    direction = torch.randn_like(mine)
    leaves = [x, *theirs.parameters()]
    one = torch.autograd.grad(mine, leaves, direction)
    other = torch.autograd.grad(last[0], leaves, direction)
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_without_gradients_the_last_state_is_the_same():
    tensors = pieces(3, 6, 4)
    with_tape = scan.scan(*(t.requires_grad_() for t in tensors))
    with torch.no_grad():
        assert torch.equal(scan.scan(*tensors), with_tape)


def test_the_operators_are_well_formed():
    tensors = [t.requires_grad_() for t in pieces(2, 3, 4)]
    plain = [t.detach() for t in tensors]
    for operator, given in [
        (scan.scan_last, plain),
        (scan.scan_taped, plain),
        (scan.scan_taped, tensors),
    ]:
        verdicts = torch.library.opcheck(operator, given)
        assert len(verdicts) > 1
        assert set(verdicts.values()) == {"SUCCESS"}


CASES = [
    # rows, inputs, size of the state, tf32
    (3, 1, 16, False),
    (2, 5, 64, False),
    (2, 3, 128, False),
    (259, 3, 16, True),
    (257, 2, 64, True),
    (3, 1, 24, False),  # of these sizes no program holds the weights
    (19, 3, 40, True),
    (5, 4, 256, True),
    (601, 2, 232, True),
]


@needs_triton
def test_the_kernels_compute_the_scan():
    assert cases_checked(__file__) == len(CASES)


def main() -> None:
    from dvrl.core import scan_triton

    torch.set_num_threads(1)
    for n, length, size, tf32 in CASES:
        gates, weight, bias = (t.float() for t in pieces(n, length, size))
        weight, d_last = weight / size**0.5, torch.randn(n, size)
        wanted = scan.scan_taped(*(t.double() for t in (gates, weight, bias)))
        got, alone = (
            tuple(torch.full_like(x, torch.nan).float() for x in wanted),
            torch.full((n, size), torch.nan),
        )
        scan_triton.forward(gates, weight, bias, got, tf32=tf32)
        scan_triton.forward(gates, weight, bias, (alone,), tf32=tf32)
        d_wanted = scan.scan_back(d_last.double(), *wanted[1:], weight.double())
        d_got = scan_triton.backward(d_last, *got[1:], weight, tf32=tf32)
        assert torch.equal(alone, got[0])
        for a, b in zip((*got, d_got), (*wanted, d_wanted), strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=2e-5)
        print("checked", n, length, size, tf32)


if __name__ == "__main__":
    main()
