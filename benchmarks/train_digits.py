"""A small convolutional network for handwritten digits, trained in numpy: the tests' real data.

    python -m benchmarks.train_digits digits.csv.gz tests/data/digits

The file is scikit-learn's `sklearn/datasets/data/digits.csv.gz` (8 by 8 images, 0 to 16, and the
digit). Writes `digits.npz` (images and digits in a shuffled order) and `digits.onnx`, trained on
the first two thirds.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]

CHANNELS = (12, 24)
EPOCHS, BATCH, RATE, MOMENTUM = 40, 32, 0.05, 0.9


def main(source: Path, folder: Path) -> None:
    """Both files, and the accuracy on the last third."""
    rng = np.random.default_rng(0)
    table = rng.permutation(np.loadtxt(source, delimiter=",").astype(np.uint8))
    images, digits = table[:, :-1].reshape(-1, 1, 8, 8), table[:, -1]
    np.savez_compressed(folder / "digits.npz", images=images, digits=digits)
    count = 2 * len(images) // 3
    x = images.astype(np.float32) / 16
    weights = train(x[:count], digits[:count], rng)
    found = forward(x[count:], weights)[-1].argmax(axis=1)
    print(f"accuracy {np.mean(found == digits[count:]):.4f}")
    onnx.save(network(weights), folder / "digits.onnx")


def train(x: Array, digits: Array, rng: np.random.Generator) -> list[Array]:
    """Weights and biases of both convolutions and the dense layer, by descent with momentum."""
    shapes = (CHANNELS[0], 1, 3, 3), (CHANNELS[1], CHANNELS[0], 3, 3), (10, 4 * CHANNELS[1])
    weights: list[Array] = []
    for shape in shapes:
        spread = np.sqrt(2 / np.prod(shape[1:]))
        weights += [rng.standard_normal(shape) * spread, np.zeros(shape[0])]
    speed = [np.zeros_like(w) for w in weights]
    for epoch in range(EPOCHS):
        rate = RATE * (1 - epoch / EPOCHS)
        order = rng.permutation(len(x))
        for start in range(0, len(x), BATCH):
            chosen = order[start : start + BATCH]
            slopes = gradients(x[chosen], digits[chosen], weights)
            speed = [MOMENTUM * v - rate * s for v, s in zip(speed, slopes, strict=True)]
            weights = [w + v for w, v in zip(weights, speed, strict=True)]
    return [w.astype(np.float32) for w in weights]


def forward(x: Array, weights: list[Array]) -> list[Array]:
    """What each layer makes: images, both convolutions and both maxima, and the scores."""
    w1, b1, w2, b2, w3, b3 = weights
    made = [x]
    for w, b in ((w1, b1), (w2, b2)):
        made.append(np.maximum(convolve(made[-1], w) + b[:, None, None], 0))
        n, c, h, width = made[-1].shape
        made.append(made[-1].reshape(n, c, h // 2, 2, width // 2, 2).max(axis=(3, 5)))
    return [*made, made[-1].reshape(len(x), -1) @ w3.T + b3]


def gradients(x: Array, digits: Array, weights: list[Array]) -> list[Array]:
    """The slope of the cross entropy along each weight."""
    made = forward(x, weights)
    scores = np.exp(made[-1] - made[-1].max(axis=1, keepdims=True))
    slope = scores / scores.sum(axis=1, keepdims=True)
    slope[np.arange(len(x)), digits] -= 1
    slope /= len(x)
    found = [slope.T @ made[4].reshape(len(x), -1), slope.sum(axis=0)]
    slope = (slope @ weights[4]).reshape(made[4].shape)
    for layer in (1, 0):
        before, full, pooled = made[2 * layer : 2 * layer + 3]
        wide = pooled.repeat(2, axis=2).repeat(2, axis=3)
        slope = slope.repeat(2, axis=2).repeat(2, axis=3) * ((full == wide) & (full > 0))
        around = windows(before)
        found = [np.einsum("nohw,nchwij->ocij", slope, around), slope.sum(axis=(0, 2, 3)), *found]
        turned = weights[2 * layer][:, :, ::-1, ::-1].transpose(1, 0, 2, 3)
        slope = convolve(slope, turned)
    return found


def convolve(x: Array, w: Array) -> Array:
    """3 by 3, padded by 1."""
    return np.einsum("nchwij,ocij->nohw", windows(x), w, optimize=True)


def windows(x: Array) -> Array:
    """The 3 by 3 around each place, as two more dimensions."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    return np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))


def network(weights: list[Array]) -> onnx.ModelProto:
    """The trained network for any batch, over images from 0 to 1."""
    names = ["w1", "b1", "w2", "b2", "w3", "b3"]
    nodes, value = [], "image"
    for layer in (1, 2):
        conv, relu, pool = f"conv{layer}", f"relu{layer}", f"pool{layer}"
        sources = [value, f"w{layer}", f"b{layer}"]
        nodes += [
            helper.make_node("Conv", sources, [conv], conv, pads=[1, 1, 1, 1]),
            helper.make_node("Relu", [conv], [relu], relu),
            helper.make_node("MaxPool", [relu], [pool], pool, kernel_shape=[2, 2], strides=[2, 2]),
        ]
        value = pool
    nodes += [
        helper.make_node("Flatten", [value], ["flat"], "flatten"),
        helper.make_node("Gemm", ["flat", "w3", "b3"], ["scores"], "dense", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(w, name) for w, name in zip(weights, names, strict=True)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
