"""Packing by positions against packing by name."""

import pytest
import torch

from dvrl.core import rows, tree
from dvrl.encoders.config import GruConfig, ParticleConfig
from dvrl.nets.spaces import Spec

CONFIGS = {
    "particles": ParticleConfig(n_particles=3, h_dim=8, z_dim=5, embed_dim=6),
    "gru": GruConfig(h_dim=7, embed_dim=3),
}
every_recorder = pytest.mark.parametrize("name", CONFIGS)


def recorder(name: str):
    torch.manual_seed(0)
    made = CONFIGS[name].build(Spec((2,), 2, False)).recorder()
    with torch.no_grad():
        for p in made.packing.parameters:
            p.copy_(torch.randn(p.shape))  # no zeros: none but those that packing adds
    made.open(2, 1)
    made.begin(rows.join([p.detach() for p in made.packing.parameters]))
    return made


@every_recorder
def test_a_row_holds_what_packing_by_name_gives(name):
    made = recorder(name)
    for packed, by_name in zip((made.weights, made.acting), made._pack(), strict=True):
        for a, b in zip(tree.leaves(packed), tree.leaves(by_name), strict=True):
            assert torch.equal(a, b)


@every_recorder
def test_gradients_come_back_to_the_parameters_they_belong_to(name):
    made = recorder(name)
    by_name = tree.leaves(made._pack()[0])
    directions = [torch.randn(x.shape) for x in by_name]
    n = len(list(made.embedding.parameters()))
    wanted = torch.autograd.grad(by_name, made.packing.parameters[n:], directions)
    (derived,) = torch.autograd.grad(tree.leaves(made.weights), [made.leaves[-1]], directions)
    live = [torch.randn(3), torch.randn(4, 16)]
    size = made.packing.sizes[0]
    found = made.packing.gradient(torch.ones(2, size), derived, live)
    assert torch.equal(found[:size], torch.full((size,), 2.0))
    assert torch.equal(found[size:], rows.join([*wanted, *live]))


@every_recorder
def test_an_old_segment_keeps_its_own_parameters(name):
    made = recorder(name)
    before = [x.clone() for x in tree.leaves(made.weights)]
    made.begin(rows.join([torch.randn(p.shape) for p in made.packing.parameters]))
    for old, newest, stacked in zip(
        before, tree.leaves(made.weights), tree.leaves(made._all_weights), strict=True
    ):
        assert torch.equal(stacked[0], old)
        assert torch.equal(stacked[1], newest)
        assert not torch.equal(old, newest)
