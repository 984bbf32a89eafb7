"""Cases of the operators that became, or are combinations of, operators of ONNX."""

import numpy as np

from tests.support.contrib import Array, add, rand

_RNG = np.random.default_rng(8)


def _moves() -> None:
    x = rand(2, 3, 4)
    add("trilu", "Trilu", {"x": x})
    add("trilu_lower", "Trilu", {"x": x, "k": np.asarray(-1, np.int64)}, upper=0)
    places = np.array([[[0, 1]], [[1, 2]]], np.int64)
    add("gather_nd", "GatherND", {"x": x, "i": places})
    for axis in (0, -1, 2):
        inputs = {"x": x, "axis": np.asarray(axis, np.int32)}
        add(f"expand_dims_{axis}", "ExpandDims", inputs, known=("axis",))
    pads = {"x": x, "p": np.array([0, 1, -1, 1, 0, 2], np.int64), "v": np.full(1, 2.5, np.float32)}
    add("pad", "Pad", pads, known=("p", "v"))
    rows = {"x": x, "p": pads["p"][None]}
    add("pad_rows", "Pad", rows, known=("p",))
    for mode in ("reflect", "edge"):
        around = {"x": x, "p": np.array([1, 1, 0, 0, 1, 2], np.int64)}
        add(f"pad_{mode}", "Pad", around, known=("p",), mode=mode)
    add("sample_op", "SampleOp", {"x": x})
    numbers = {"a": np.asarray(2, np.int32), "b": np.asarray(9, np.int32)}
    add("range", "Range", numbers, known=("a", "b"))
    steps = {"a": np.full(1, 1.0, np.float32), "b": np.full(1, -2.0, np.float32)}
    steps["d"] = np.full(1, -0.5, np.float32)
    add("range_steps", "Range", steps, known=tuple(steps))
    values = _RNG.integers(0, 5, 12).astype(np.float32)
    add("unique", "Unique", {"x": values}, outputs=("y", "i", "n"))


def _images() -> None:
    x = rand(2, 3, 6, 5)
    grid = _RNG.uniform(-1.1, 1.1, (2, 4, 3, 2)).astype(np.float32)
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding in ("zeros", "border"):
            inputs = {"x": x, "g": grid}
            add(f"grid_{mode}_{padding}", "GridSample", inputs, mode=mode, padding_mode=padding)
    boxes = np.array([[0.1, 0.2, 0.8, 0.9], [-0.2, 0.0, 1.1, 0.7], [0.9, 0.6, 0.2, 0.1]])
    crops = {"x": x, "boxes": boxes.astype(np.float32), "batch": np.array([0, 1, 1], np.int32)}
    for size in ((4, 3), (1, 2), (6, 1)):
        inputs = {**crops, "size": np.array(size, np.int32)}
        add(f"crop_{size[0]}_{size[1]}", "CropAndResize", inputs, known=("size",),
            extrapolation_value=1.5)  # fmt: skip
    inputs = {**crops, "size": np.array([4, 3], np.int32)}
    add("crop_nearest", "CropAndResize", inputs, known=("size",), mode="nearest")
    kernel = {"x": rand(1, 3, 4, 4), "w": rand(3, 2, 3, 3, seed=1)}
    pads = {"pads": np.array([1, 0, 1, 2], np.int64), "b": rand(2)}
    op = "ConvTransposeWithDynamicPads"
    add("conv_transpose", op, {**kernel, **pads}, known=("w", "pads", "b"), strides=[2, 1])


def _complex() -> None:
    def product(a: Array, b: Array) -> Array:
        made = (a[..., 0] + 1j * a[..., 1]) * (b[..., 0] + 1j * b[..., 1])
        return np.stack([made.real, made.imag], -1).astype(np.float32)

    def conjugate(a: Array, b: Array) -> Array:
        return product(a, b * np.array([1, -1], np.float32))

    inputs = {"a": rand(3, 4, 2), "b": rand(4, 2, seed=1)}
    add("complex_mul", "ComplexMul", inputs, meaning=product)
    add("complex_mul_conj", "ComplexMulConj", inputs, meaning=conjugate)

    def rfft(x: Array) -> Array:
        made = np.fft.rfft(x)
        return np.stack([made.real, made.imag], -1).astype(np.float32)

    def rfft2(x: Array) -> Array:
        made = np.fft.rfft2(x)
        return np.stack([made.real, made.imag], -1).astype(np.float32)

    options = {"normalized": 0, "onesided": 1}
    add("rfft", "Rfft", {"x": rand(3, 8)}, signal_ndim=1, meaning=rfft, **options)
    add("rfft2", "Rfft", {"x": rand(2, 6, 8)}, signal_ndim=2, meaning=rfft2, **options)
    back = {"x": rfft(rand(3, 8))}
    add("irfft", "Irfft", back, signal_ndim=1, meaning=lambda x: rand(3, 8), **options)
    back = {"x": rfft2(rand(2, 6, 8))}
    add("irfft2", "Irfft", back, signal_ndim=2, meaning=lambda x: rand(2, 6, 8), **options)


def _distances() -> None:
    inputs = {"a": rand(4, 6), "b": rand(5, 6, seed=1)}
    for metric in ("euclidean", "sqeuclidean"):
        add(f"cdist_{metric}", "CDist", inputs, metric=metric)


def _words() -> None:
    text = _RNG.integers(1, 9, (6, 6)).astype(np.int32)
    for word, length in {1: 4, 2: 1, 5: 2}.items():
        text[word, length:] = 0
    weights = {"w": rand(5, 1, 3, 4), "b": rand(5, seed=1), "c": rand(9, 4, seed=2)}
    inputs = {"text": text, **weights}
    add("words", "WordConvEmbedding", inputs, known=tuple(weights))

    def nothing(text: Array, w: Array, b: Array, c: Array) -> Array:
        """onnxruntime does not write the rows of words without characters."""
        return np.zeros((len(text), len(w)), np.float32)

    empty = {"text": np.zeros((2, 4), np.int32), **weights}
    add("words_empty", "WordConvEmbedding", empty, known=tuple(weights), meaning=nothing)


def _positions() -> None:
    """As transformers' T5 assigns buckets, element by element."""

    def bucket(distance: int, count: int, most: int, both: bool) -> int:
        found = 0
        if both:
            count //= 2
            found = count if distance > 0 else 0
            distance = abs(distance)
        else:
            distance = max(-distance, 0)
        exact = count // 2
        if distance < exact:
            return found + distance
        ratio = np.log(np.float32(distance) / exact) / np.log(most / exact)
        return found + min(exact + int(ratio * (count - exact)), count - 1)

    for both in (0, 1):

        def meaning(t: Array, q: Array, k: Array, both: bool = bool(both)) -> Array:
            stored = t.reshape(t.shape[::-1])
            made = np.empty((1, t.shape[1], int(q[0]), int(k[0])), np.float32)
            for row in range(int(q[0])):
                for column in range(int(k[0])):
                    place = bucket(column - row, t.shape[0], 20, both)
                    made[0, :, row, column] = stored[:, place]
            return made

        lengths = {"q": np.full(1, 30, np.int64), "k": np.full(1, 30, np.int64)}
        add(f"relative_{both}", "RelativePositionBias", {"t": rand(16, 3), **lengths},
            known=("q", "k"), is_bidirectional=both, max_distance=20, meaning=meaning)  # fmt: skip


def _gates() -> None:
    def meaning(q: Array, qb: Array, r: Array, w: Array, b: Array, e: Array) -> Array:
        n, s, hidden = q.shape
        heads = e.shape[1]
        rows = (q + qb).reshape(n, s, heads, hidden // heads).transpose(0, 2, 1, 3)
        gates = (rows @ w + b).reshape(n, heads, s, 2, -1).sum(-1)
        gates = 1 / (1 + np.exp(-gates))
        return (gates[..., :1] * (gates[..., 1:] * e - 1) + 2) * r

    inputs = {
        "q": rand(2, 5, 12), "qb": rand(12, seed=1), "r": rand(1, 3, 5, 5, seed=2),
        "w": rand(4, 8, seed=3), "b": rand(8, seed=4), "e": rand(1, 3, 1, 1, seed=5),
    }  # fmt: skip
    add("gated", "GatedRelativePositionBias", inputs, known=("w", "b"), num_heads=3,
        meaning=meaning)  # fmt: skip


def _matrices() -> None:
    for shape in ((3, 3), (2, 4, 4), (1, 1)):
        matrices = rand(*shape) + 3 * np.eye(shape[-1], dtype=np.float32)
        add(f"inverse_{len(shape)}_{shape[-1]}", "Inverse", {"x": matrices})


def _checks() -> None:
    odd = {"": [], "_nan": [np.nan], "_inf": [np.inf], "_both": [-np.inf, np.nan]}
    for name, numbers in odd.items():
        inputs = {"a": rand(2, 3), "b": np.array([*rand(4), *numbers], np.float32)}
        only = {"": {}, "_only_nan": {"isnan_only": 1}, "_only_inf": {"isinf_only": 1}}
        for label, attrs in only.items():
            seen = [np.isnan(n) if "nan" in label else np.isinf(n) if label else True
                    for n in numbers]  # fmt: skip
            good = np.asarray(not any(seen))
            add(f"finite{name}{label}", "IsAllFinite", inputs, meaning=lambda a, b, g=good: g,
                **attrs)  # fmt: skip


def _hashes() -> None:
    for dtype in ("int32", "uint32", "int64", "uint64", "float32", "float64"):
        numbers = (_RNG.standard_normal(9) * 1e6).astype(dtype)
        add(f"hash_{dtype}", "MurmurHash3", {"x": numbers}, seed=42, tolerance=0)
    add("hash_signed", "MurmurHash3", {"x": numbers.astype(np.int32)}, positive=0, tolerance=0)


_moves()
_images()
_complex()
_distances()
_words()
_positions()
_gates()
_hashes()
_checks()
_matrices()
