"""Encoders of transformers as ONNX files with random weights, for `benchmarks.networks`.

    python -m benchmarks.encoders build/encoders [--batches 1 16] [--lengths 16 128 512]
    python -m benchmarks.networks build/encoders/*.onnx
    python -m benchmarks.networks build/encoders/*.onnx --precision bfloat16 --own-precision

The shapes are those of MiniLM-L6, BERT-base, ViT-small/16 at 224 pixels and the encoder of Whisper
base; `--lengths` are tokens of the first two. The second line measures float32, the third one
bfloat16 on processors that multiply it, also against OpenVINO as it comes. Sixteen texts of 512
tokens take BERT-base 1.5 TFLOP a call.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
from onnx import TensorProto

from benchmarks.command import parser_of
from benchmarks.minilm import Array, Writer, encoder_layer

WORDS = 30522
PIXELS, PATCH, COLORS = 224, 16, 3
FRAMES, MELS = 3000, 80


@dataclass(frozen=True, slots=True)
class Encoder:
    """Layers of one width, whose dense layers are four times as wide inside."""

    name: str
    layers: int
    width: int
    heads: int


TEXTS = Encoder("minilm", 6, 384, 12), Encoder("bert_base", 12, 768, 12)
IMAGES = Encoder("vit_small", 12, 384, 6)
SPEECH = Encoder("whisper_base", 6, 512, 8)


class _RandomWeights(Mapping[str, Array]):
    """Weights of a width by the names of BERT's; equal names, equal numbers."""

    def __init__(self, width: int) -> None:
        self._width = width

    def __getitem__(self, name: str) -> Array:
        inner = 4 * self._width if "intermediate" in name else self._width
        if "LayerNorm" in name:
            return np.full(self._width, float(name.endswith("weight")), np.float32)
        rng = np.random.default_rng(crc32(name.encode()))
        if name.endswith("bias"):
            return rng.normal(0, 0.02, inner).astype(np.float32)
        narrow = ".attention." in name or "intermediate" in name
        depth = self._width if narrow else 4 * self._width
        return _drawn(rng, inner, depth)

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[str]:
        return iter(())


def _drawn(rng: np.random.Generator, *shape: int) -> Array:
    """Weights that keep the size of what they are multiplied with."""
    return rng.normal(0, np.prod(shape[1:]) ** -0.5, shape).astype(np.float32)


def text_encoder(encoder: Encoder, folder: Path, batch: int, length: int) -> Path:
    """Tokens and a mask to a vector for each token, norms behind the sums, as BERT."""
    net, rng, width = _begun(encoder)
    table = net.constant(rng.normal(0, 1, (WORDS, width)).astype(np.float32))
    places = net.constant(rng.normal(0, 1, (length, width)).astype(np.float32))
    x = net.norm(net.op("Add", [net.op("Gather", [table, "tokens"]), places]), "LayerNorm")
    seen = net.op("Cast", ["mask"], to=TensorProto.FLOAT)
    row = net.op("Reshape", [seen, net.constant(np.array([batch, 1, 1, length]))])
    away = net.op("Mul", [net.op("Sub", [net.number(1.0), row]), net.number(-1e9)])
    for layer in range(encoder.layers):
        x = encoder_layer(net, x, f"layer.{layer}", encoder.heads, away)
    inputs = {name: (int(TensorProto.INT64), [batch, length]) for name in ("tokens", "mask")}
    path = folder / f"{encoder.name}_{batch}x{length}.onnx"
    return net.written(path, inputs, x, [batch, length, width])


def image_encoder(encoder: Encoder, folder: Path, batch: int) -> Path:
    """Images to the vector of their class token, norms first, as ViT."""
    net, rng, width = _begun(encoder)
    stem = net.constant(_drawn(rng, width, COLORS, PATCH, PATCH))
    made = net.op("Conv", ["image", stem], strides=[PATCH, PATCH])
    rows = net.op("Reshape", [made, net.constant(np.array([0, width, -1]))])
    rows = net.op("Transpose", [rows], perm=[0, 2, 1])
    first = net.constant(rng.normal(0, 1, (batch, 1, width)).astype(np.float32))
    count = (PIXELS // PATCH) ** 2 + 1
    places = net.constant(rng.normal(0, 1, (count, width)).astype(np.float32))
    x = net.op("Add", [net.op("Concat", [first, rows], axis=1), places])
    x = _norms_first(net, x, encoder)
    x = net.op("Gather", [x, net.constant(np.array(0))], axis=1)
    shape = [batch, COLORS, PIXELS, PIXELS]
    path = folder / f"{encoder.name}_{batch}.onnx"
    return net.written(path, {"image": (int(TensorProto.FLOAT), shape)}, x, [batch, width])


def speech_encoder(encoder: Encoder, folder: Path, batch: int) -> Path:
    """Spectra of 30 seconds to 1,500 vectors, two convolutions and norms first, as Whisper."""
    net, rng, width = _begun(encoder)
    x = "mel"
    for depth, stride in ((MELS, 1), (width, 2)):
        taps = net.constant(_drawn(rng, width, depth, 3))
        x = net.gelu(net.op("Conv", [x, taps], pads=[1, 1], strides=[stride]))
    x = net.op("Transpose", [x], perm=[0, 2, 1])
    count = FRAMES // 2
    places = net.constant(rng.normal(0, 1, (count, width)).astype(np.float32))
    x = _norms_first(net, net.op("Add", [x, places]), encoder)
    path = folder / f"{encoder.name}_{batch}.onnx"
    inputs = {"mel": (int(TensorProto.FLOAT), [batch, MELS, FRAMES])}
    return net.written(path, inputs, x, [batch, count, width])


def _begun(encoder: Encoder) -> tuple[Writer, np.random.Generator, int]:
    return Writer(_RandomWeights(encoder.width)), np.random.default_rng(0), encoder.width


def _norms_first(net: Writer, x: str, encoder: Encoder) -> str:
    for layer in range(encoder.layers):
        x = encoder_layer(net, x, f"layer.{layer}", encoder.heads, norm_first=True)
    return net.norm(x, "LayerNorm")


def main() -> None:
    """The console script."""
    parser = parser_of(__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 128, 512])
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for batch in given.batches:
        for encoder in TEXTS:
            for length in given.lengths:
                print(text_encoder(encoder, given.out, batch, length))
        print(image_encoder(IMAGES, given.out, batch))
        print(speech_encoder(SPEECH, given.out, batch))


if __name__ == "__main__":
    main()
