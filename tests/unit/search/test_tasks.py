"""Tasks: equal groups are one, and each has a workload that tells right from wrong."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

from benchmarks.digest import texts_of
from benchmarks.large_graphs import write_model
from retune.core.dtypes import BOOL, INT32, INT64, UINT8, DType, TensorType
from retune.core.target import GENERIC_CPU
from retune.frontend.onnx.importer import load_file
from retune.graph.fuse import ALIAS
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.passes.joins import inclusions
from retune.graph.passes.pipeline import optimise
from retune.ir.interp import run_dag
from retune.records.ranking import top
from retune.records.store import RecordStore
from retune.search.extract import Network, extract, make_task
from retune.search.history import best_candidate, candidate_of
from retune.search.session import Session, search_all
from retune.targets.cost.estimate import MOST_ROUNDINGS, default_candidate
from tests.support.search_fakes import HERE, FakeRunner, network, settings, tasks


def one_op(op: str, *types: TensorType, **attrs: object) -> Graph:
    build = GraphBuilder("net")
    for position, entry in enumerate(types):
        build.input(f"x{position}", entry)
    names = [f"x{position}" for position in range(len(types))]
    return build.finish([build.add(op, names, attrs)])  # type: ignore[arg-type]


def test_equal_groups_are_one_task_with_their_number():
    build = GraphBuilder("net")
    build.input("x", TensorType((4, 16)))
    build.input("w", TensorType((16, 16)))
    once = build.add("relu", [build.add("dense", ["x", "w"])])
    again = build.add("relu", [build.add("dense", [once, "w"])])
    other = build.add("dense", [again, "w"])
    found = extract(build.finish([other]))
    assert [task.weight for task in found.tasks.values()] == [2, 1]
    assert len(found.groups) == 3
    assert [g.task_key for g in found.groups[:2]] == [next(iter(found.tasks))] * 2


@pytest.mark.parametrize("window", [(3, 3), (1, 5)])
def test_a_name_states_ops_window_and_key(window: tuple[int, int]):
    """Names of tasks with other keys differ, in whichever networks they are."""
    image, weights = TensorType((1, 9, 9, 4)), TensorType((*window, 4, 8))
    rest = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "groups": 1}
    convolved = one_op("conv2d", image, weights, layout="NHWC", **rest)
    (task,) = extract(convolved).tasks.values()
    assert task.name == f"conv2d_{window[0]}x{window[1]}_{task.key[:8]}"
    pooling = {"kernel": window, "layout": "NHWC", **rest}
    (task,) = extract(one_op("max_pool2d", image, **pooling)).tasks.values()
    assert task.name == f"max_pool2d_{window[0]}x{window[1]}_{task.key[:8]}"


def counted_calls(path: Path) -> tuple[Network, int]:
    """The tasks of a model's file, and how many functions were called until they were there."""
    calls = 0

    def count(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        return extract(optimise(load_file(path))), calls
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("shape", ["row", "beside", "concat", "split"])
def test_tasks_take_work_in_proportion_to_the_nodes(shape: str, tmp_path: Path):
    """Networks of the same levels (`graph/passes/wide.py`), with two times the nodes."""
    (_, less), (network, more) = (
        counted_calls(write_model(tmp_path / f"{nodes}.onnx", shape, nodes)) for nodes in (150, 300)
    )
    assert more <= 2.1 * less
    known = [placed for placed in network.groups if placed.task_key is not None]
    parts = {v for node in network.graph.nodes for v, _, _ in inclusions(node, network.graph)}
    for placed in known:  # those that share a task would be this one alone, too
        assert make_task(network.graph, placed.group, parts).key == placed.task_key


def test_an_alias_has_no_task():
    found = extract(optimise(network()))
    assert [p.task_key is None for p in found.groups] == [
        p.group.kind == ALIAS for p in found.groups
    ]
    assert any(p.task_key is None for p in found.groups)


def test_keys_do_not_depend_on_names():
    left = one_op("relu", TensorType((4, 5)))
    build = GraphBuilder("other")
    build.input("y", TensorType((4, 5)))
    right = build.finish([build.add("relu", ["y"], outputs=["z"])])
    assert extract(left).tasks.keys() == extract(right).tasks.keys()


@pytest.mark.parametrize("op", ["sqrt", "log"])
def test_a_workload_has_no_undefined_results(op: str):
    (task,) = extract(one_op(op, TensorType((40,)))).tasks.values()
    work = task.workload()
    assert all(np.isfinite(array).all() for array in work.outputs.values())
    assert all(array.min() > 0 for array in work.inputs.values())


@pytest.mark.parametrize("dtype", [INT64, INT32, UINT8, BOOL])
def test_a_workload_has_the_types_of_the_group(dtype: DType):
    (task,) = extract(one_op("equal", *[TensorType((6,), dtype)] * 2)).tasks.values()
    work = task.workload()
    assert [str(array.dtype) for array in work.inputs.values()] == [dtype] * 2
    assert [str(array.dtype) for array in work.outputs.values()] == [BOOL]


def test_a_workload_is_what_the_merged_expression_computes():
    for task in tasks():
        work = task.workload(seed=3)
        shaped = {t.name: work.inputs[t.name].reshape(t.shape) for t in task.dag.placeholders}
        values = run_dag(task.dag, shaped)
        for name, expected in work.outputs.items():
            np.testing.assert_allclose(
                values[name].reshape(expected.shape), expected, rtol=1e-5, atol=1e-5
            )


def test_seeds_give_other_data_under_other_keys():
    task = tasks()[0]
    first, second = task.workload(1), task.workload(2)
    assert first.key != second.key
    assert task.workload(1).key == first.key
    arrays = zip(first.inputs.values(), second.inputs.values(), strict=True)
    assert not any(np.array_equal(a, b) for a, b in arrays)


def test_a_task_is_json():
    for task in tasks():
        data = json.loads(json.dumps(task.to_json()))
        assert data["key"] == task.key
        assert data["output"] == list(task.output_shape)


def test_records_lead_back_to_their_candidates(store: Path):
    runner = FakeRunner()
    session = Session(tasks(), runner, RecordStore(store), settings(trials=20))
    search_all(session)
    task = tasks()[0]
    space = task.space(GENERIC_CPU)
    found = best_candidate(RecordStore(store), task.key, HERE, space)
    assert found is not None
    candidate, record = found
    assert candidate.key == record.config_hash
    (best,) = top(RecordStore(store), task.key, HERE, 1)
    assert record.record_id == best.record_id

    assert candidate_of(replace(record, sketch="of yesterday"), space) is None
    assert candidate_of(replace(record, trace="{not json"), space) is None
    assert candidate_of(replace(record, trace="[]"), space) is None
    assert best_candidate(RecordStore(store), "unknown", HERE, space) is None


def test_the_default_schedule_is_always_the_same():
    for task in tasks():
        spaces = [task.space(GENERIC_CPU) for _ in range(2)]
        assert len({default_candidate(space, GENERIC_CPU).key for space in spaces}) == 1


def test_a_digest_has_kernels_of_sketches_that_no_default_would_be():
    """F(6, 3) rounds too often for what is compiled unseen."""
    build, attrs = GraphBuilder("net"), {"strides": (1, 1), "pads": (0, 1, 0, 1), "groups": 1}
    build.input("x", TensorType((1, 1, 48, 16)))
    build.constant("w", np.zeros((1, 3, 16, 16), np.float32))
    made = build.add("conv2d", ["x", "w"], {**attrs, "dilations": (1, 1), "layout": "NHWC"})
    (task,) = extract(build.finish([made])).tasks.values()
    space = task.space(GENERIC_CPU).whole
    assert any(s.roundings > MOST_ROUNDINGS for s in space.sketches)
    kernels = texts_of(task, GENERIC_CPU, 0)["kernels"]
    assert len(kernels) == sum(not sketch.empty for sketch in space.sketches)
