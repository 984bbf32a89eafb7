"""What tests of loops share: a small network around one, and its meaning in plain numpy."""

import numpy as np

from retune.core.dtypes import FLOAT32, TensorType
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.scan import Scan
from retune.ops import Array

ROW = TensorType((2, 8), FLOAT32)
WEIGHT = (np.random.default_rng(0).standard_normal((8, 8)) / 3).astype(np.float32)


def body() -> Graph:
    """(state, other, row, factor) -> (tanh(state w' + row), state), (their product by factor)."""
    build = GraphBuilder("body")
    state, other, row, factor = (build.input(n, ROW) for n in ("state", "other", "row", "factor"))
    product = build.add("dense", [state, build.constant("w", WEIGHT)])
    after = build.add("tanh", [build.add("add", [product, row])])
    made = build.add("multiply", [build.add("multiply", [after, other]), factor])
    return build.finish([after, state, made])


def network(steps: int, backward: tuple[int, int] = (0, 0)) -> Graph:
    """One loop, whose last state somebody reads."""
    build = GraphBuilder("loop")
    start, factor = build.input("start", ROW), build.input("factor", ROW)
    rows = build.input("rows", TensorType((steps, *ROW.shape), FLOAT32))
    scan = Scan(
        body=body(),
        steps=steps,
        states=2,
        backward_inputs=backward[:1],
        backward_outputs=backward[1:],
    )
    build.add("scan", [start, start, rows, factor], scan.attrs, outputs=["last", "before", "all"])
    build.add("relu", ["last"], outputs=["shown"])
    return build.finish(["shown", "before", "all"]).verify()


def side_by_side(steps: int) -> Graph:
    """Two loops that do not need each other, of data that kernels make, in the order in which a
    file has them: the data of the second one are made behind the first loop."""
    build = GraphBuilder("loops")
    start, factor = build.input("start", ROW), build.input("factor", ROW)
    given = build.input("given", TensorType((steps, *ROW.shape), FLOAT32))
    scan = Scan(body=body(), steps=steps, states=2, backward_inputs=(0,), backward_outputs=(0,))
    for name, op in (("a", "tanh"), ("b", "exp")):
        data = build.add(op, [given])
        outputs = [f"{name}.last", f"{name}.before", f"{name}.all"]
        build.add("scan", [start, start, data, factor], scan.attrs, outputs=outputs)
    build.add("add", ["a.all", "b.all"], outputs=["sum"])
    return build.finish(["sum"]).verify()


def expected(inputs: dict[str, Array], backward: tuple[int, int] = (0, 0)) -> dict[str, Array]:
    """What the network makes."""
    state, other, made = inputs["start"], inputs["start"], list[Array]()
    rows = inputs["rows"][::-1] if backward[0] else inputs["rows"]
    for row in rows:
        after = np.tanh(state @ WEIGHT.T + row)
        made.append(after * other * inputs["factor"])
        state, other = after, state
    stacked = np.stack(made[::-1] if backward[1] else made)
    return {"shown": np.maximum(state, 0), "before": other, "all": stacked}
