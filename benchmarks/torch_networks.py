"""Networks in plain torch that no package of architectures has: one function for each.

Imported only where torch is; `benchmarks.torch_architectures` names them.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

torch: Any = import_module("torch")
nn: Any = torch.nn

WORDS = 1000
"""In a vocabulary."""


class UNet(nn.Module):
    """Two steps down by pooling, two up: one by a transposed convolution, one by interpolation."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first = _twice(3, width)
        self.second = _twice(width, 2 * width)
        self.bottom = _twice(2 * width, 4 * width)
        self.rise = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.third = _twice(4 * width, 2 * width)
        self.last = _twice(3 * width, width)
        self.classes = nn.Conv2d(width, classes, 1)

    def forward(self, x: Any) -> Any:
        """Scores of the classes at every pixel."""
        pooled, resized = nn.functional.max_pool2d, nn.functional.interpolate
        wide = self.first(x)
        middle = self.second(pooled(wide, 2))
        low = self.rise(self.bottom(pooled(middle, 2)))
        middle = self.third(torch.cat((low, middle), 1))
        high = resized(middle, size=wide.shape[2:], mode="bilinear", align_corners=False)
        return self.classes(self.last(torch.cat((high, wide), 1)))


class Tagger(nn.Module):
    """A tag for each word, by two recurrent layers in both directions."""

    def __init__(self, recurrent: Any, tags: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 64)
        self.recurrent = recurrent(64, 96, num_layers=2, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(192, tags)

    def forward(self, words: Any) -> Any:
        """Log probabilities of the tags."""
        return self.tags(self.recurrent(self.words(words))[0]).log_softmax(-1)


class Causal(nn.Module):
    """A residual block of dilated convolutions that look back only."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.past = 2 * dilation
        self.convolution = nn.Conv1d(channels, channels, 3, dilation=dilation)
        self.mix = nn.Conv1d(channels, channels, 1)

    def forward(self, x: Any) -> Any:
        """The signal and what the block adds to it."""
        seen = self.convolution(nn.functional.pad(x, (self.past, 0)))
        return x + self.mix(torch.tanh(seen) * torch.sigmoid(seen))


class Encoder(nn.Module):
    """torch's own transformer encoder over embedded words."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classes = nn.Linear(128, classes)

    def forward(self, words: Any) -> Any:
        """Scores of the classes, from the mean over the words."""
        return self.classes(self.layers(self.words(words)).mean(1))


def _twice(made_of: int, channels: int) -> Any:
    return nn.Sequential(
        nn.Conv2d(made_of, channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.Conv2d(channels, channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
    )


def _noise(*shape: int) -> Any:
    return torch.rand(*shape) * 2 - 1


def _words(count: int) -> Any:
    return torch.randint(0, 16, (1, count))


def unet() -> tuple[Any, tuple[Any, ...]]:
    """Segmentation of a small image."""
    return UNet(24, 4), (_noise(1, 3, 96, 96),)


def dcgan_generator() -> tuple[Any, tuple[Any, ...]]:
    """Noise to an image of 64 x 64 by transposed convolutions."""
    layers: list[Any] = [nn.ConvTranspose2d(100, 512, 4, bias=False)]
    for channels in (256, 128, 64):
        layers += [nn.BatchNorm2d(2 * channels), nn.ReLU(True)]
        layers.append(nn.ConvTranspose2d(2 * channels, channels, 4, 2, 1, bias=False))
    layers += [nn.BatchNorm2d(64), nn.ReLU(True), nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False)]
    return nn.Sequential(*layers, nn.Tanh()), (_noise(1, 100, 1, 1),)


def espcn() -> tuple[Any, tuple[Any, ...]]:
    """Super resolution by three: sub-pixels are channels until the end."""
    layers = (
        nn.Conv2d(1, 64, 5, padding=2), nn.Tanh(),
        nn.Conv2d(64, 32, 3, padding=1), nn.Tanh(),
        nn.Conv2d(32, 9, 3, padding=1), nn.PixelShuffle(3),
    )  # fmt: skip
    return nn.Sequential(*layers), (_noise(1, 1, 80, 80),)


def lstm_tagger() -> tuple[Any, tuple[Any, ...]]:
    """Tags of words by LSTMs."""
    return Tagger(nn.LSTM, 12), (_words(32),)


def gru_tagger() -> tuple[Any, tuple[Any, ...]]:
    """Tags of words by GRUs."""
    return Tagger(nn.GRU, 12), (_words(32),)


def keyword_spotting() -> tuple[Any, tuple[Any, ...]]:
    """A spoken word from its signal, by the architecture M5."""
    layers: list[Any] = []
    for depth, channels, taps, stride in ((1, 32, 80, 16), (32, 32, 3, 1), (32, 64, 3, 1)):
        layers += [nn.Conv1d(depth, channels, taps, stride), nn.BatchNorm1d(channels)]
        layers += [nn.ReLU(), nn.MaxPool1d(4)]
    layers += [nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 35), nn.LogSoftmax(-1)]
    return nn.Sequential(*layers), (_noise(1, 1, 8000),)


def temporal_convolutions() -> tuple[Any, tuple[Any, ...]]:
    """A signal to a signal, by causal convolutions with gates."""
    layers = [nn.Conv1d(4, 32, 1), *(Causal(32, 2**i) for i in range(5)), nn.Conv1d(32, 4, 1)]
    return nn.Sequential(*layers), (_noise(1, 4, 256),)


def transformer_encoder() -> tuple[Any, tuple[Any, ...]]:
    """A text's class by torch's own layers."""
    return Encoder(8), (_words(32),)


def autoencoder() -> tuple[Any, tuple[Any, ...]]:
    """An image through a narrow middle: strided convolutions, group norms, nearest neighbours."""
    layers: list[Any] = []
    for depth, channels in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(depth, channels, 3, 2, 1), nn.GroupNorm(8, channels), nn.SiLU()]
    for depth, channels in ((64, 64), (64, 32), (32, 16)):
        layers += [nn.Upsample(scale_factor=2.0, mode="nearest"), nn.ReflectionPad2d(1)]
        layers += [nn.Conv2d(depth, channels, 3), nn.InstanceNorm2d(channels, affine=True)]
        layers.append(nn.LeakyReLU(0.2))
    return nn.Sequential(*layers, nn.Conv2d(16, 3, 1), nn.Sigmoid()), (_noise(1, 3, 64, 64),)


NETWORKS: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    made.__name__: made
    for made in (
        unet,
        dcgan_generator,
        espcn,
        lstm_tagger,
        gru_tagger,
        keyword_spotting,
        temporal_convolutions,
        transformer_encoder,
        autoencoder,
    )
}
"""Name -> the model and its inputs."""
