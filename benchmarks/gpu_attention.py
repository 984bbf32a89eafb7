"""Attention of 12 heads of 64 in float16 on a GPU, against PyTorch's scaled_dot_product_attention.

    python -m benchmarks.gpu_attention --device nvidia-cuda-0 128 512 1024 4096

ONNX's Attention, batch 1, causal and not, with the default schedule: its launches in a row without
waiting, and PyTorch's kernels replayed from a graph: that of flash attention, and the one that
PyTorch prefers (cuDNN's). Ratios are of times, ours over each of theirs. Results are compared with
PyTorch's in float32, by the largest difference as a part of the range.
"""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.command import parser_of
from benchmarks.table import geometric_mean
from benchmarks.torch_peer import graph_us
from retune.api import compile_network, import_network
from retune.core.dtypes import FLOAT16
from retune.device.opencl.runtime import Device
from retune.device.opening import open_device
from retune.pipeline.precision import precision_named

HEADS, WIDTH = 12, 64
_NAMES = ("q", "k", "v")
_PEERS = ("flash", "preferred")


def attention(length: int, *, causal: bool) -> onnx.ModelProto:
    """So many queries, keys and values of each head."""
    shape = [1, HEADS, length, WIDTH]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT16, shape) for n in _NAMES]
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT16, shape)
    node = helper.make_node("Attention", _NAMES, ["y"], "attention", is_causal=int(causal))
    graph = helper.make_graph([node], "attention", inputs, [made])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def measured(device: Device, length: int, *, causal: bool) -> tuple[str, list[float]]:
    """The line of one length, and our time over that of each of `_PEERS`."""
    torch: Any = import_module("torch")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(attention(length, causal=causal), path)
        network = import_network(path, precision=precision_named(FLOAT16, device.spec))
        module = compile_network(network, device=device)
    rng = np.random.default_rng(length)
    shape = (1, HEADS, length, WIDTH)
    feeds = {name: rng.standard_normal(shape).astype(np.float16) for name in _NAMES}
    found = module.run(feeds)["y"].astype(np.float32)
    data = [torch.from_numpy(feeds[name]).cuda() for name in _NAMES]
    attend = torch.nn.functional.scaled_dot_product_attention
    with torch.inference_mode():
        exact = attend(*(x.float() for x in data), is_causal=causal).cpu().numpy()
        preferred = graph_us(lambda: attend(*data, is_causal=causal))
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            flash = graph_us(lambda: attend(*data, is_causal=causal))
    own = 1e6 * sum(launch.median_s for launch in module.profile(5, feeds))
    off = float(np.abs(found - exact).max() / np.ptp(exact))
    kernels = ", ".join(launch.kernel.partition("_")[0] for launch in module.plan.launches)
    what = "causal" if causal else "all keys"
    peers = dict(zip(_PEERS, (flash, preferred), strict=True))
    beside = ", ".join(f"{name} {us:6.1f} us {own / us:.2f}x" for name, us in peers.items())
    line = f"{length:5} {what:8} {own:6.1f} us; {beside}; off by {off:.1e}; {kernels}"
    return line, [own / us for us in peers.values()]


def report(device: Device, lengths: list[int]) -> Iterator[str]:
    """The lines of all lengths, and the mean and the worst of each peer."""
    ratios: list[list[float]] = []
    for length in lengths:
        for causal in (False, True):
            line, found = measured(device, length, causal=causal)
            ratios.append(found)
            yield line
    for name, own in zip(_PEERS, zip(*ratios, strict=True), strict=True):
        yield f"{name}: geometric mean {geometric_mean(own):.2f}x, worst {max(own):.2f}x"


def main() -> None:
    """Measures the lengths named on the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--device", required=True)
    parser.add_argument("lengths", nargs="*", type=int, default=[128, 256, 512, 1024, 2048, 4096])
    options = parser.parse_args()
    for line in report(open_device(options.device), options.lengths):
        print(line, flush=True)


if __name__ == "__main__":
    main()
