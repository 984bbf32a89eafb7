"""Square matrix products of float16 on a GPU: the best generated kernels against cuBLAS.

    python -m benchmarks.products --device nvidia-cuda-0 1024 4096 8192

Products of N x N matrices, `x @ w.T`, in float16 with sums of float32, the weights constant. For
each N it times the kernels that the estimate puts first, of each sketch as many, and prints the
fastest with its decisions, the default one, and torch's product of the same sizes, replayed from a
graph of launches. One kernel of each sketch is compared with numpy's product of 512 x 512 first.
"""

from collections.abc import Iterator

import numpy as np

from benchmarks.command import parser_of
from benchmarks.torch_peer import product_us
from retune.codegen.lower import lower
from retune.core.dtypes import FLOAT16
from retune.device.opencl.execute import execute
from retune.device.opencl.runtime import Device, DeviceMemory, open_device
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, compute, placeholder, reduce_axis, stored
from retune.schedule.space import Sketch
from retune.targets.cost.estimate import estimate
from retune.targets.devices import target_of
from retune.targets.gpu.space import gpu_space

_CHECKED = 512
_SAMPLES = 600
_ROUNDS = 5


def product(n: int) -> Dag:
    """`x @ w.T` of n x n matrices."""
    x = placeholder("x", (n, n), FLOAT16)
    w = placeholder("w", (n, n), FLOAT16, constant=True)
    k = reduce_axis("k", n)
    y = compute("y", (n, n), lambda i, j: x[i, k] * w[j, k], [x, w], reduce=(k,))
    return Dag((stored(compute("z", (n, n), lambda i, j: y[i, j], [y]), FLOAT16),))


def candidates(
    n: int, device: Device, count: int, seed: int = 0
) -> Iterator[tuple[Sketch, np.ndarray]]:
    """The candidates that the estimate puts first: so many of each sketch, the best first."""
    found: list[tuple[float, int, Sketch, np.ndarray]] = []
    for number, sketch in enumerate(gpu_space(from_dag(product(n)), device.spec).sketches):
        rows = np.unique(sketch.sample(_SAMPLES, np.random.default_rng(seed)), axis=0)
        times = estimate(sketch, rows, device.spec)
        order = np.argsort(times, kind="stable")[:count]
        found += [(float(times[i]), number, sketch, rows[i]) for i in order]
    for _, _, sketch, row in sorted(found, key=lambda entry: entry[:2]):
        yield sketch, row


def check(device: Device) -> Iterator[tuple[str, float]]:
    """Largest error of a kernel of each sketch, relative to the largest result."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((_CHECKED, _CHECKED)).astype(np.float16) for _ in range(2))
    expected = x.astype(np.float32) @ w.astype(np.float32).T
    for sketch, row in candidates(_CHECKED, device, 1):
        source = lower(sketch.instantiate(row), target_of(device.spec))
        made = execute(source, {"x": x, "w": w}, device)["z"].reshape(expected.shape)
        yield sketch.name, float(np.abs(made - expected).max() / np.abs(expected).max())


def kernel_s(
    device: Device, sketch: Sketch, row: np.ndarray, buffers: dict[str, DeviceMemory]
) -> float:
    """Seconds of a candidate on random data, the least of several runs."""
    source = lower(sketch.instantiate(row), target_of(device.spec))
    program = device.build(*(k.text for k in source.kernels), options=source.options)
    for entry in source.buffers:
        if entry.name not in buffers:
            buffers[entry.name] = device.random(entry.dtype, entry.elements)
    launches = device.prepare_all(program, source.launches, buffers)
    return min(device.time_kernels(launches, _ROUNDS) for _ in range(2)) / _ROUNDS


def report(n: int, device: Device, count: int) -> None:
    """Prints the default's, the fastest kernel's and torch's speed."""
    buffers: dict[str, DeviceMemory] = {}
    times = [
        (kernel_s(device, sketch, row, buffers), number, sketch.name, row.tolist())
        for number, (sketch, row) in enumerate(candidates(n, device, count))
    ]
    sketch, row = next(candidates(n, device, count))
    default = min(times[0][0], kernel_s(device, sketch, row, buffers))  # the first found it idle
    operations, peer = 2 * n**3, product_us(n)
    best, _, name, row = min(times)
    shown = {"default": default, f"best of {len(times)}": best}
    text = ", ".join(f"{what} {1e-12 * operations / s:.0f} TFLOPS" for what, s in shown.items())
    cublas = "" if peer is None else f", cuBLAS {1e-6 * operations / peer:.0f} TFLOPS"
    print(f"{n}: {text} ({name} {row}){cublas}", flush=True)


def main() -> None:
    """Measures the sizes named on the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("sizes", nargs="*", type=int, default=[1024, 4096, 8192])
    parser.add_argument("--device", required=True)
    parser.add_argument("--count", type=int, default=12, help="kernels of each sketch")
    options = parser.parse_args()
    device = open_device(options.device)
    for name, error in check(device):
        print(f"{name}: off by {error:.1e} of the largest result", flush=True)
    for n in options.sizes:
        report(n, device, options.count)


if __name__ == "__main__":
    main()
