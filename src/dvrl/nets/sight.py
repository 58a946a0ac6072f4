"""How an agent sees: observations embedded, and decoded again, as vectors or as images."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from dvrl.core.laws import Bernoulli, Gaussian
from dvrl.nets import picture
from dvrl.nets.layers import RELU_GAIN, ContextLinear, GaussianHead, linear, mlp
from dvrl.nets.norm import BatchNorm

CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (32, 3, 1))
"""Channels, width and stride of the layers that embed an image; decoders mirror them."""
SMALLEST = (32, 7, 7)
"""What they make of an image of 84 x 84."""
SIDE = 84


class Decoder(nn.Module, ABC):
    """p(o | own, context): what is each particle's own, and what all of an environment share."""

    @abstractmethod
    def forward(
        self, own: Float[Tensor, "*G N K D"], context: Float[Tensor, "*G N C"]
    ) -> Gaussian | Bernoulli:
        """A law for every particle."""


@dataclass(frozen=True)
class Sight(ABC):
    """A kind of observation, and the networks it wants."""

    @property
    @abstractmethod
    def x_dim(self) -> int:
        """Size of an embedded observation."""

    @abstractmethod
    def embed(self) -> nn.Module:
        """phi^o."""

    @abstractmethod
    def decoder(self, n_own: int, n_context: int) -> Decoder:
        """The law of an observation."""


@dataclass(frozen=True)
class VectorSight(Sight):
    """Real numbers."""

    obs_dim: int
    embed_dim: int
    min_var: float

    @property
    def x_dim(self) -> int:
        return self.embed_dim

    def embed(self) -> nn.Module:
        return mlp(self.obs_dim, [self.embed_dim, self.embed_dim])

    def decoder(self, n_own: int, n_context: int) -> "VectorDecoder":
        return VectorDecoder(n_own, n_context, self.embed_dim, self.obs_dim, self.min_var)


@dataclass(frozen=True)
class ImageSight(Sight):
    """Images of 84 x 84 with values in [0, 1]."""

    channels: int
    norm: bool

    @property
    def x_dim(self) -> int:
        channels, height, width = SMALLEST
        return channels * height * width

    def embed(self) -> nn.Module:
        return Convolutions(self.channels, self.norm)

    def decoder(self, n_own: int, n_context: int) -> "ImageDecoder":
        return ImageDecoder(n_own, n_context, self.channels, self.norm)


class VectorDecoder(Decoder):
    """Two hidden layers, then mean and variance."""

    def __init__(
        self, n_own: int, n_context: int, hidden: int, obs_dim: int, min_var: float
    ) -> None:
        super().__init__()
        self.first = ContextLinear(n_own, n_context, hidden)
        self.hidden = linear(hidden, hidden)
        self.head = GaussianHead(hidden, obs_dim, min_var)

    def forward(self, own: Float[Tensor, "*G N K D"], context: Float[Tensor, "*G N C"]) -> Gaussian:
        return self.head(self.hidden(self.first(own, context).relu()).relu())


class Convolutions(nn.Module):
    """Three convolutions, each normalised and followed by a ReLU, as one vector."""

    def __init__(self, channels: int, norm: bool) -> None:
        super().__init__()
        self.channels, self.side, self.norm = channels, SIDE, norm
        self.layers, self.norms = nn.ModuleList(), nn.ModuleList()
        for size, width, stride in CONVOLUTIONS:
            self.layers.append(_orthogonal(nn.Conv2d(channels, size, width, stride)))
            self.norms.append(BatchNorm(size, places=2) if norm else nn.Identity())
            channels = size

    def forward(self, o: Float[Tensor, "*G N C 84 84"]) -> Float[Tensor, "*G N X"]:
        x, rows = o, o.shape[:-3]
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = layer(x.reshape(-1, *x.shape[-3:]))
            x = norm(x.view(*rows, *x.shape[1:])).relu()
        return x.flatten(-3)

    def by_kernels(self) -> bool:
        """Whether `nets.picture` can do it: one normalised image, on a GPU."""
        one = self.norm and self.channels == 1
        return one and picture.find(self.layers[0].weight) is not None


class ImageDecoder(Decoder):
    """A linear layer, then the convolutions' mirror: a brightness for every pixel."""

    def __init__(self, n_own: int, n_context: int, channels: int, norm: bool) -> None:
        super().__init__()
        self.channels, self.norm = channels, norm
        smallest = SMALLEST[0] * SMALLEST[1] * SMALLEST[2]
        self.first = ContextLinear(n_own, n_context, smallest)
        self.norms = nn.ModuleList([BatchNorm(smallest, rows=2) if norm else nn.Identity()])
        self.layers = nn.ModuleList()
        sizes = [size for size, _, _ in CONVOLUTIONS[-2::-1]] + [channels]
        before = CONVOLUTIONS[-1][0]
        for size, (_, width, stride) in zip(sizes, CONVOLUTIONS[::-1], strict=True):
            self.layers.append(_orthogonal(Enlarge(before, size, width, stride)))
            before = size
        for size in sizes[:-1]:
            self.norms.append(BatchNorm(size, rows=2, places=2) if norm else nn.Identity())

    def begin(
        self, own: Float[Tensor, "*G N K D"], context: Float[Tensor, "*G N C"]
    ) -> Float[Tensor, "*G N K X"]:
        """The smallest images, as vectors."""
        return self.norms[0](self.first(own, context)).relu()

    def forward(
        self, own: Float[Tensor, "*G N K D"], context: Float[Tensor, "*G N C"]
    ) -> Bernoulli:
        rows = own.shape[:-1]
        x = self.begin(own, context).unflatten(-1, SMALLEST)
        for layer, norm in zip(self.layers[:-1], self.norms[1:], strict=True):
            x = layer(x.reshape(-1, *x.shape[-3:]))
            x = norm(x.view(*rows, *x.shape[1:])).relu()
        x = self.layers[-1](x.reshape(-1, *x.shape[-3:]))
        return Bernoulli(x.view(*rows, *x.shape[1:]))

    def by_kernels(self) -> bool:
        """Whether `nets.mirror` can do it: one normalised image, on a GPU."""
        one = self.norm and self.channels == 1
        return one and picture.find(self.first.weight) is not None


class Enlarge(nn.ConvTranspose2d):
    """A transposed convolution whose width is a multiple of its stride, as a plain one.

    Of s x s neighbouring outputs all see the same inputs: they are channels of a convolution that
    is narrower by s, rearranged as places afterwards. Libraries are slower at the transposed form,
    most of all where few channels come out.
    """

    def forward(self, input: Float[Tensor, "B C Y X"], output_size: None = None) -> Tensor:
        (width, _), (stride, _) = self.kernel_size, self.stride
        taps = width // stride
        assert taps * stride == width, (width, stride)
        split = self.weight.unflatten(-1, (taps, stride)).unflatten(-3, (taps, stride))
        # C, O, taps, stride, taps, stride; what is added later comes from further back.
        arranged = split.flip(2, 4).permute(1, 3, 5, 0, 2, 4).flatten(0, 2)
        assert self.bias is not None
        bias = self.bias.repeat_interleave(stride**2)
        out = F.conv2d(input, arranged.contiguous(), bias, padding=taps - 1)
        return F.pixel_shuffle(out, stride)


def _orthogonal(layer: nn.Conv2d | nn.ConvTranspose2d) -> nn.Module:
    """Orthogonal weights, zero bias."""
    nn.init.orthogonal_(layer.weight, RELU_GAIN)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
