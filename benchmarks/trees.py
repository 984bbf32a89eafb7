"""Tree ensembles: our time for a run against onnxruntime's, interleaved, by rows of data.

    python -m benchmarks.trees
    python -m benchmarks.trees forest --rows 1 1000 --seconds 5

Regressors of float32 data with 25 features, of the sizes that libraries make by default: boosted
trees of 8 to 256 leaves and a forest of hundreds. Default schedules; ratios below 1 are faster.
"""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.command import parser_of
from retune.api import import_network
from retune.bundle.build import build_plan
from retune.bundle.runtime.forms import best_form
from retune.bundle.runtime.module import Module
from retune.bundle.verify.bench import BenchOptions, compare_times
from retune.bundle.verify.peers import open_peer
from retune.device.measure.lease import lease
from retune.device.opencl.runtime import open_device

FEATURES = 25
ENSEMBLES = {
    "shallow": (100, 8),
    "boosted": (100, 31),
    "boosted_many": (355, 31),
    "deep": (100, 64),
    "wide": (100, 256),
    "forest": (100, 500),
}
"""By name: trees, and leaves of each."""


def grown(leaves: int, rng: np.random.Generator) -> list[tuple[int, float, int, int]]:
    """A tree for data in [0, 1): feature, limit and both children of each node; -1 for a leaf.

    Leaves that more data reach are split sooner.
    """
    nodes: list[tuple[int, float, int, int]] = [(-1, 0.0, 0, 0)]
    boxes = {0: np.tile([0.0, 1.0], (FEATURES, 1))}
    while len(boxes) < leaves:
        shares = np.array([np.prod(np.diff(box)) for box in boxes.values()])
        node = int(rng.choice(list(boxes), p=shares / shares.sum()))
        feature, box = int(rng.integers(FEATURES)), boxes.pop(node)
        limit = float(np.float32(rng.uniform(*box[feature])))
        children = len(nodes), len(nodes) + 1
        nodes[node] = (feature, limit, *children)
        for child, side in zip(children, (1, 0), strict=True):
            nodes.append((-1, 0.0, 0, 0))
            boxes[child] = box.copy()
            boxes[child][feature, side] = limit
    return nodes


def model_of(trees: int, leaves: int) -> onnx.ModelProto:
    """A regressor with random trees and leaves, for any number of rows."""
    rng = np.random.default_rng(0)
    whole = [(tree, i, *n) for tree in range(trees) for i, n in enumerate(grown(leaves, rng))]
    tree, number, feature, limit, yes, no = (list(column) for column in zip(*whole, strict=True))
    ends = [(t, n) for t, n, own, *_ in whole if own < 0]
    attrs: dict[str, Any] = {
        "nodes_treeids": tree,
        "nodes_nodeids": number,
        "nodes_featureids": [max(own, 0) for own in feature],
        "nodes_values": limit,
        "nodes_modes": ["LEAF" if own < 0 else "BRANCH_LEQ" for own in feature],
        "nodes_truenodeids": yes,
        "nodes_falsenodeids": no,
        "target_treeids": [t for t, _ in ends],
        "target_nodeids": [n for _, n in ends],
        "target_ids": [0] * len(ends),
        "target_weights": rng.normal(size=len(ends)).tolist(),
    }
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, **attrs
    )
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", FEATURES])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 1])
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([node], "trees", [given], [made])
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


def compare(path: Path, rows: int, seconds: float) -> str:
    """Our median, onnxruntime's and their ratio."""
    device, shapes = open_device("pocl"), {"x": (rows, FEATURES)}
    network = import_network(str(path), shapes).network
    plan = build_plan(network, {}, device.spec, model_key="", notes={})
    with lease(device.spec):
        module = Module(best_form(plan, device), device)
    peer = open_peer("onnxruntime", path, shapes=shapes)
    data = np.random.default_rng(1).random((rows, FEATURES), np.float32)
    found, wanted = (call({"x": data})["y"] for call in (module.run, peer))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    calls = {"ours": lambda: module.run({"x": data}), "onnxruntime": lambda: peer({"x": data})}
    with lease(device.spec):
        outcome = compare_times(calls, options=BenchOptions(budget_s=seconds))
    ours, theirs = (1e3 * timing.median_s for timing in outcome.timings)
    return f"{rows:5} rows {ours:7.3f} / {theirs:7.3f} ms = {ours / theirs:4.2f}"


def main() -> None:
    """Prints a line for each ensemble."""
    parser = parser_of(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ENSEMBLES))
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 1000])
    parser.add_argument("--seconds", type=float, default=2, help="Time for each number of rows.")
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        for name in given.names or ENSEMBLES:
            path = Path(folder) / f"{name}.onnx"
            onnx.save(model_of(*ENSEMBLES[name]), path)
            cells = [compare(path, rows, given.seconds) for rows in given.rows]
            sizes = "{} x {}".format(*ENSEMBLES[name])
            print(f"{name:13} {sizes:9} {'   '.join(cells)}, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
