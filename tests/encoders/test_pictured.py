"""Embeddings of images by kernels against plain ones, and a window of an agent that sees by them.

The kernels run in Triton's interpreter; the modules compute in double precision.
"""

from dataclasses import replace

import torch

from interpreted import cases_checked, needs_triton

SEGMENTS, STEPS, N = 2, 1, 2


@needs_triton
def test_images_are_embedded_by_kernels_as_by_modules():
    assert cases_checked(__file__) == 2


def embeddings() -> None:
    """Two segments with weights of their own: values, running statistics, gradients."""
    from dvrl.core import rows
    from dvrl.encoders.embedding import Sensed
    from dvrl.encoders.pictured import Pictured
    from dvrl.nets.layers import embed_action
    from dvrl.nets.norm import unwatched
    from dvrl.nets.sight import Convolutions

    torch.manual_seed(0)
    of_action, of_image = embed_action(4, 8, True), Convolutions(1, True)
    pictured = Pictured(of_action, of_image)
    parameters = [*of_action.parameters(), *of_image.parameters()]
    own = rows.join([p.detach() for p in parameters])
    window = own + 0.05 * torch.randn(SEGMENTS, len(own))
    total = SEGMENTS * STEPS
    a_tm1, o_t = torch.randn(total, N, 4), torch.rand(total, N, 1, 84, 84)
    pictured.open(total)
    for s in range(SEGMENTS):
        pictured.begin(window[: s + 1])
        for t in range(s * STEPS, s * STEPS + STEPS):
            x = pictured.ahead(o_t[t], t)
    inputs = Sensed(a_tm1, o_t, torch.zeros(total, N, dtype=torch.bool))
    with unwatched():
        embedded = pictured.sense(inputs, STEPS)
    assert torch.equal(embedded.x[-1], x)
    d_a, d_x = torch.randn_like(embedded.a), torch.randn_like(embedded.x)
    loss = (embedded.a * d_a).sum() + (embedded.x * d_x).sum()
    found = pictured.joined(torch.autograd.grad(loss, pictured.leaves))[0]
    watched = [torch.cat([n.mean, n.var]) for n in of_image.norms]

    of_action, of_image = embed_action(4, 8, True).double(), Convolutions(1, True).double()
    plain = Pictured(of_action, of_image)
    wanted = torch.zeros_like(found, dtype=torch.float64)
    for s in range(SEGMENTS):
        leaf = window[s].double().requires_grad_()
        for t in range(s * STEPS, s * STEPS + STEPS):
            seen = plain._call(leaf, a_tm1[t].double(), o_t[t].double())
            torch.testing.assert_close(embedded.a[t].double(), seen.a, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(embedded.x[t].double(), seen.x, rtol=1e-4, atol=1e-4)
            loss = (seen.a * d_a[t]).sum() + (seen.x * d_x[t]).sum()
            wanted += torch.autograd.grad(loss, leaf)[0]
    shapes = [p.shape for p in parameters]
    largest = float(wanted.norm())
    for got, want in zip(rows.part(found, shapes), rows.part(wanted, shapes), strict=True):
        # Some are 0: those of biases before a normalisation.
        assert (got - want).norm() < 1e-4 * (want.norm() + 1e-2 * largest), got.shape
    for got, n in zip(watched, of_image.norms, strict=True):
        torch.testing.assert_close(got.double(), torch.cat([n.mean, n.var]), rtol=1e-4, atol=1e-6)
    print("checked")


def agents() -> None:
    """A window of DVRL. Single precision rounds sums of thousands of nats: hence the tolerance."""
    from dvrl.encoders.config import ParticleConfig
    from dvrl.encoders.pictured import Pictured
    from dvrl.envs.config import AtariConfig
    from dvrl.experiments.presets import preset
    from dvrl.nets import picture, picture_triton
    from dvrl.runs.trainer import Trainer

    config = preset("quick", "dvrl", AtariConfig("Pong"), steps=10**9)
    learner = replace(config.learner, n_envs=2, n_steps=1, n_grad=1, clip_norm=1e9)
    encoder = ParticleConfig(2, h_dim=8, z_dim=4, embed_dim=4, batch_norm=True)
    config = replace(config, encoder=encoder, learner=learner)
    found = []
    for find in (lambda x: None, lambda x: picture_triton):
        picture.find = find
        trainer = Trainer(config, torch.device("cpu"))
        assert isinstance(trainer.learner.recorder.embedding, Pictured) == (find(0) is not None)
        metrics = trainer.window().metrics
        found.append((trainer.learner.optimiser.gradient.clone(), metrics))
    (plain, seen), (kernels, seen_too) = found
    for name, value in seen.items():
        assert abs(seen_too[name] - value) <= 1e-2 * (1 + abs(value)), name
    assert (kernels - plain).norm() < 1e-2 * plain.norm()
    print("checked")


def main() -> None:
    from dvrl.nets import picture, picture_triton

    torch.set_num_threads(1)
    picture.find = lambda x: picture_triton
    embeddings()
    agents()


if __name__ == "__main__":
    main()
