"""Quantize a network to int8 with its own data, and count what that costs and gains.

    .venv/bin/python examples/14_quantize.py [TRIALS] [OUT]

The network reads handwritten digits of 8 x 8 pixels; both it and the images are those that the
tests use. Ranges of activations follow from 200 images. The two bundles are compared on 597 images
that neither training nor calibration has seen. `retune quantize` reports the loss of each layer.

int8 pays where the device has instructions for products of bytes (`retune devices` lists them), and
where layers are large; these are small.
"""

import sys
from pathlib import Path

import numpy as np

import retune
import retune.api
from retune.bundle.runtime.module import Module

DATA = Path(__file__).parents[1] / "tests/data/digits"
CALIBRATION = 200
BATCH = 199
"""Images of a call: three calls for all that are held out."""
HELD_OUT = 3 * BATCH


def correct(module: Module, images: np.ndarray, digits: np.ndarray) -> float:
    """The share of images whose digit the bundle finds."""
    batches = [module.run(each)[0].argmax(1) for each in np.split(images, len(images) // BATCH)]
    return float((np.concatenate(batches) == digits).mean())


def main() -> None:
    """Prints size, accuracy and time of both bundles."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 32
    out = Path(sys.argv[2] if len(sys.argv) > 2 else "artifacts/examples/quantized")
    out.mkdir(parents=True, exist_ok=True)

    with np.load(DATA / "digits.npz") as data:
        images = data["images"].astype(np.float32) / 16
        digits = data["digits"][-HELD_OUT:]
    held_out = images[-HELD_OUT:]
    samples = out / "samples.npz"
    np.savez(samples, image=images[:CALIBRATION])

    model, shapes = DATA / "digits.onnx", {"image": (BATCH, 1, 8, 8)}
    plain = retune.tune_network(model, out / "float32", trials=trials, shapes=shapes)
    coded = retune.tune_network(
        model,
        out / "int8",
        trials=trials,
        shapes=shapes,
        quantize="int8",
        calibration=str(samples),
    )

    with Module.load(plain.module) as floats, Module.load(coded.module) as integers:
        first = held_out[:BATCH]
        calls = {
            "float32": lambda: floats.run(first),
            "int8": lambda: integers.run(first),
        }
        times = retune.api.compare_times(calls)
        for name, result, module in (("float32", plain, floats), ("int8", coded, integers)):
            share = correct(module, held_out, digits)
            us = 1e6 * times.timing(name).median_s
            stored = (Path(result.module) / "weights.safetensors").stat().st_size / 1e3
            print(f"{name:8} {share:6.1%} right {us:8.0f} us a call {stored:6.1f} kB of weights")


if __name__ == "__main__":
    main()
