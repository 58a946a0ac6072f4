"""Convolutions by kernels against plain ones: layers, statistics, and every gradient.

The kernels run in Triton's interpreter; the modules compute in double precision.
"""

import torch

from interpreted import cases_checked, needs_triton

CASES = [
    # steps, environments, particles
    (1, 1, 2),
    (2, 2, 1),
]


@needs_triton
def test_the_kernels_compute_the_decoder_and_its_gradients():
    assert cases_checked(__file__) == len(CASES)


def main() -> None:
    from dvrl.nets import picture, picture_triton
    from dvrl.nets.mirror import Mirror
    from dvrl.nets.norm import unwatched
    from dvrl.nets.sight import SMALLEST, ImageDecoder

    torch.set_num_threads(1)
    picture.find = lambda x: picture_triton
    for steps, n, k in CASES:
        torch.manual_seed(k)
        decoder = ImageDecoder(4, 2, 1, norm=True)
        for p in decoder.parameters():
            p.data += 0.1 * torch.randn_like(p)
        own, context = torch.randn(steps, n, k, 4), torch.randn(steps, n, 2)
        o, d = torch.rand(steps, n, 1, 84, 84), torch.randn(steps, n, k)

        plain = ImageDecoder(4, 2, 1, norm=True).double()
        plain.load_state_dict({name: t.double() for name, t in decoder.state_dict().items()})
        own_d = own.double().requires_grad_()
        with unwatched():
            wanted = plain(own_d, context.double()).log_prob(o.double()[:, :, None])
        wanted_g = torch.autograd.grad(wanted, [own_d, *plain.parameters()], d.double())

        leaf = own.clone().requires_grad_()
        with unwatched():
            x = decoder.begin(leaf, context).unflatten(-1, SMALLEST).movedim(-3, -1).contiguous()
            mirror = Mirror(decoder)
            got = mirror.log_prob(x, o)
        got_g = torch.autograd.grad(got, [leaf, *decoder.parameters()], d)
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-3)
        largest = max(float(b.norm()) for b in wanted_g)
        names = ["own", *(name for name, _ in decoder.named_parameters())]
        for name, a, b in zip(names, got_g, wanted_g, strict=True):
            scale = float(b.norm()) + 1e-3 * largest  # some are 0: biases before a normalisation
            assert float((a.double() - b).norm()) < 1e-4 * scale, (name, a.norm(), b.norm())
        if steps == 1:
            with torch.no_grad():
                before = decoder.norms[1].mean.clone(), decoder.norms[2].var.clone()
                mirror.log_prob(x, o)
                plain(own_d, context.double())
            for a, b in zip(decoder.norms[1:], plain.norms[1:], strict=True):
                torch.testing.assert_close(a.mean.double(), b.mean, rtol=1e-4, atol=1e-5)
                torch.testing.assert_close(a.var.double(), b.var, rtol=1e-4, atol=1e-5)
            assert not torch.equal(before[0], decoder.norms[1].mean)
        print("checked")


if __name__ == "__main__":
    main()
