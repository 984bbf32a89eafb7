"""Models of ai.onnx.ml: one node, and random trees."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.support.peer import Arrays, typed_model

DOMAIN = "ai.onnx.ml"


def ml_model(
    op: str, inputs: Arrays, outputs: Sequence[str] = ("y",), version: int = 3, **attrs: Any
) -> onnx.ModelProto:
    """A model of one node of that domain that reads all the inputs."""
    made = helper.make_node(op, list(inputs), list(outputs), name="only", domain=DOMAIN, **attrs)
    model = typed_model([made], inputs, outputs, opset=15)
    model.opset_import.append(helper.make_opsetid(DOMAIN, version))
    return model


def trees(
    rng: np.random.Generator,
    count: int,
    features: int,
    *,
    depth: int = 4,
    modes: Sequence[str] = ("BRANCH_LEQ",),
    missing: bool = False,
) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """Attributes of random trees, and each leaf as the numbers of its tree and its node."""
    rows: list[tuple[int, int, str, int, float, int, int]] = []
    leaves: list[tuple[int, int]] = []
    for tree in range(count):
        free, left = 1, [(0, 0)]
        while left:
            node, level = left.pop()
            if level == depth or (level and rng.random() < 0.25):
                rows.append((tree, node, "LEAF", 0, 0.0, 0, 0))
                leaves.append((tree, node))
                continue
            limit = float(np.float32(rng.integers(-2, 3) / 2))
            mode, feature = str(rng.choice(list(modes))), int(rng.integers(features))
            rows.append((tree, node, mode, feature, limit, free, free + 1))
            left += [(free, level + 1), (free + 1, level + 1)]
            free += 2
    order = [rows[i] for i in _shuffled(rng, rows)]
    names = ("treeids", "nodeids", "modes", "featureids", "values", "truenodeids", "falsenodeids")
    attrs: dict[str, Any] = {
        f"nodes_{name}": list(column)
        for name, column in zip(names, zip(*order, strict=True), strict=True)
    }
    if missing:
        attrs["nodes_missing_value_tracks_true"] = rng.integers(0, 2, len(order)).tolist()
    return attrs, leaves


def _shuffled(rng: np.random.Generator, rows: Sequence[tuple[Any, ...]]) -> list[int]:
    """An order of the rows in which trees stay together, roots first."""
    keys = [(row[0], row[1] != 0, rng.random()) for row in rows]
    return sorted(range(len(rows)), key=lambda i: keys[i])


def rows_of(rng: np.random.Generator, rows: int, features: int, *, nan: bool = False) -> np.ndarray:
    """Data that often meets the trees' limits."""
    made = (rng.integers(-6, 7, (rows, features)) / 4).astype(np.float32)
    if nan:
        made[rng.random(made.shape) < 0.2] = np.nan
    return made
