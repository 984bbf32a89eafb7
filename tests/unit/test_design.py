"""docs/design.md shows what the code gives: each block after a mark is compared with it."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from retune.codegen.lower import PASSES, lower
from retune.core.dtypes import FLOAT32
from retune.core.target import GENERIC_CPU
from retune.frontend.onnx.importer import import_model
from retune.graph.graph import Graph
from retune.ir.expr import Var
from retune.ir.functions import FUNCTIONS
from retune.ir.stmt import Program, from_dag
from retune.pipeline.choose import choose
from retune.records.conditions import Conditions, within
from retune.records.schema import TuningRecord
from retune.schedule.schedule import Schedule
from retune.schedule.space import Sketch
from retune.search.extract import extract
from retune.search.task import Task
from retune.targets.cost.estimate import default_candidate
from retune.targets.cpu.space import cpu_space
from retune.targets.devices import target_of
from retune.targets.fusion import accesses
from retune.targets.tiling import CPU, GPU
from tests.support.dags import dense
from tests.support.oracle import assert_items_agree
from tests.support.store import record

PAGE = Path(__file__).parents[2] / "docs" / "design.md"
DAG = dense(6, 8, 32)
DECIDED = {"tile.z.i": (1, 3), "tile.z.j": (1, 2), "unroll.y": (2,)}


ALONE = Conditions(
    device="cpu",
    instance="cpu",
    host="two cores",
    compute_units=2,
    affinity="0,1",
    spread_bytes=0,
    constants="warm",
    flush=False,
)
IN_NETWORK = replace(ALONE, place=within("net"))


@cache
def sketch() -> Sketch:
    return cpu_space(from_dag(DAG), GENERIC_CPU).sketch("cpu.v16.loops.pixels_slow")


@cache
def candidate() -> Program:
    return sketch().instantiate(sketch().row(DECIDED))


def roles() -> str:
    stage = accesses(Schedule(from_dag(DAG)), "y")
    lines = [f"results    {_names(stage.results)}", f"reduction  {_names(stage.deep)}"]
    for operand in stage.operands:
        moving = sorted(v.name for v in operand.moving)
        lines.append(f"{operand.load.buffer}          moved by {', '.join(moving)}")
    return "\n".join(lines)


def _names(loops: object) -> str:
    return ", ".join(loop.var.name for loop in loops)  # pyright: ignore


def levels() -> str:
    return "\n".join(
        f"{name}: {', '.join(level.name for level in known)}"
        for name, known in (("CPU", CPU), ("GPU", GPU))
    )


def nest(program: Program) -> str:
    """The loops of a program, without its declarations and statements."""
    lines = str(program).splitlines()
    return "\n".join(line[2:] for line in lines if line.lstrip().startswith("for "))


def body() -> str:
    text = lower(candidate(), target_of(GENERIC_CPU)).text
    inner = text[text.index("const int3 group)\n{\n") :]
    return inner[inner.index("{\n") + 2 : inner.index("\n}\n")]


@cache
def network(dtype: int) -> Graph:
    """One activation, from a file whose input and output have that element type."""
    x, y = (helper.make_tensor_value_info(name, dtype, [4, 16]) for name in "xy")
    graph = helper.make_graph([helper.make_node("HardSwish", ["x"], ["y"])], "net", [x], [y])
    return import_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)]))


def task_of(dtype: int) -> Task:
    (task,) = extract(network(dtype)).tasks.values()
    return task


def kernel(dtype: int) -> str:
    dag = task_of(dtype).dag
    space = cpu_space(from_dag(dag), GENERIC_CPU)
    best = default_candidate(space, GENERIC_CPU)
    text = lower(space.instantiate(best), target_of(GENERIC_CPU)).text
    inner = text[text.index("const int3 group)\n{\n") :]
    return inner[inner.index("{\n") + 2 : inner.index("\n}\n")]


def entry() -> str:
    found = FUNCTIONS["hard_swish"]
    return f"{found.op}(x) = {found.expression(Var('x', FLOAT32))}  # ONNX: {found.onnx}"


@cache
def records() -> tuple[TuningRecord, ...]:
    """Of the page's candidate and of another one, alone; then of both in the network."""
    space = cpu_space(from_dag(DAG), GENERIC_CPU)
    best = space.sketch("cpu.v16.loops.pixels_slow")
    made = record(sketch=best.name, task_key="dense", conditions=ALONE, device=ALONE.device)
    found: list[TuningRecord] = []
    for number, (rows, where, us) in enumerate(
        [(3, ALONE, 1.9), (6, ALONE, 1.8), (3, IN_NETWORK, 2.1), (6, IN_NETWORK, 2.4)]
    ):
        knobs = {**DECIDED, "tile.z.i": (1, rows)}
        row = replace(
            made,
            record_id=f"{number}",
            knobs=tuple(knobs.items()),
            trace=best.trace.with_decisions(knobs).to_json(),
            conditions=where,
            measurement=replace(made.measurement, median_us=us),
        )
        found.append(row)
    return tuple(found)


def rows_of_records() -> str:
    lines = ["id  tile.z.i  measured        us"]
    for row in records():
        where = "in the network" if row.conditions is IN_NETWORK else "alone"
        lines.append(
            f"{row.record_id:<3} {dict(row.knobs)['tile.z.i']!s:<9} {where:<15} "
            f"{row.measurement.median_us}"
        )
    return "\n".join(lines)


def choice() -> str:
    spaces = {"dense": cpu_space(from_dag(DAG), GENERIC_CPU)}
    fastest = sorted(records(), key=lambda row: row.measurement.median_us or 0.0)
    lines: list[str] = []
    for conditions, denied in (
        ((ALONE,), ()),
        ((IN_NETWORK, ALONE), ()),
        ((IN_NETWORK, ALONE), ("2",)),
    ):
        chosen = choose(fastest, conditions, {}, spaces, denied)["dense"].record_id
        known = "alone" if len(conditions) == 1 else "in the network, alone"
        lines.append(
            f"conditions: {known}; denied: {', '.join(denied) or 'none'} -> record {chosen}"
        )
    return "\n".join(lines)


BLOCKS: dict[str, Callable[[], str]] = {
    "expression": lambda: str(DAG),
    "roles": roles,
    "levels": levels,
    "trace": lambda: "\n".join(str(sketch().trace).splitlines()[:8]),
    "nest": lambda: nest(sketch().program),
    "conditions": lambda: "\n".join(map(str, sketch().constraints)),
    "candidate": lambda: nest(candidate()),
    "passes": lambda: "\n".join(label for label, _ in PASSES),
    "text": body,
    "function": entry,
    "graph": lambda: str(network(TensorProto.FLOAT)).rstrip(),
    "operator": lambda: task_of(TensorProto.FLOAT).text,
    "activation": lambda: kernel(TensorProto.FLOAT),
    "storage": lambda: task_of(TensorProto.BFLOAT16).text,
    "conversion": lambda: kernel(TensorProto.BFLOAT16),
    "records": rows_of_records,
    "choice": choice,
}


def shown() -> dict[str, str]:
    found = re.findall(r"<!-- (\w+) -->\n```\w*\n(.*?)\n```", PAGE.read_text(), re.DOTALL)
    return dict(found)


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_of_the_page_is_what_the_code_gives(name: str):
    assert shown()[name] == BLOCKS[name]()


def test_no_block_of_the_page_is_left_unchecked():
    assert shown().keys() == BLOCKS.keys()


def test_the_candidate_of_the_page_is_right():
    assert_items_agree(DAG, candidate())
