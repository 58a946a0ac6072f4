"""A step of all particles as one GPU kernel, against the step it stands for."""

import torch

from dvrl.core import rows, tree
from dvrl.encoders.config import ParticleConfig
from dvrl.encoders.particle import ParticleBelief
from dvrl.encoders.particle_recorder import ParticleRecorder
from dvrl.nets.spaces import Spec
from interpreted import cases_checked, needs_triton

N = 3
CASES = [
    # particles, size of h, what is special
    (30, 64, ""),
    (5, 64, "one particle has all the weight"),
    (1, 64, ""),
    (10, 64, "an observation beyond all bounds"),
    (8, 128, ""),
    (16, 64, "equal weights"),
]


def recorder(k: int, size: int) -> ParticleRecorder:
    torch.manual_seed(k)
    config = ParticleConfig(n_particles=k, h_dim=size, z_dim=64, embed_dim=64)
    made = config.build(Spec((2,), 2, False))
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.05 * torch.randn(p.shape))  # zero biases would hide mistakes
    return made.recorder()


def situation(k: int, size: int, special: str) -> tuple[torch.Tensor, ...]:
    h, log_w = torch.randn(N, k, size).tanh(), torch.randn(N, k)
    if special == "one particle has all the weight":
        log_w[:, 1] += 200
    if special == "equal weights":
        log_w = torch.full_like(log_w, -3.0)
    o_t = torch.randn(N, 2) * (1e25 if special == "an observation beyond all bounds" else 3)
    return h, log_w, torch.randn(N, 2), o_t, torch.rand(N, k), torch.randn(N, k, 64)


@needs_triton
def test_the_kernel_steps_like_the_encoder():
    assert cases_checked(__file__) == len(CASES)


@torch.no_grad()
def main() -> None:
    from dvrl.core import scan_triton
    from dvrl.encoders import step_triton

    torch.set_num_threads(1)
    for k, size, special in CASES:
        assert step_triton.supports(size, size, size, 64, size, 64, 2, k=k)
        mine = recorder(k, size)
        h, log_w, a, o_t, *noise = situation(k, size, special)
        belief = ParticleBelief(h, log_w)
        mine.open(1, 1)
        mine.begin(rows.join(mine.packing.parameters))
        mine._kernels = step_triton, scan_triton
        given = (belief, mine._look(mine.acting, a, o_t), o_t, *noise)
        record = mine._blank(belief)
        mine._by_kernel(record, *given)
        wanted = tree.named_leaves(mine._by_torch(mine.weights, *given), "step")
        got = tree.named_leaves(record, "step")
        assert got.keys() == wanted.keys()
        overflowed = special == "an observation beyond all bounds"
        for name in ("step.kept.weighed.log_w", "step.kept.weighed.loss") if overflowed else got:
            what = f"{name} with {k} particles {special}"
            torch.testing.assert_close(got[name], wanted[name], rtol=2e-4, atol=2e-4, msg=what)
        assert got["step.kept.weighed.vanished"].all() == overflowed
        if special == "equal weights":
            assert torch.equal(got["step.kept.ancestors"], torch.arange(k).expand(N, k))
        print("checked", k, size, special)


if __name__ == "__main__":
    main()
