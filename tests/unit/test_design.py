"""docs/design.md shows what the code gives: each block after a mark is compared with it."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from retune.codegen.lower import PASSES, lower
from retune.codegen.source import ProgramSource
from retune.core.dims import Condition, Size, assuming, dim_of
from retune.core.target import GENERIC_CPU
from retune.ir.stmt import Program, from_dag
from retune.schedule.schedule import Schedule
from retune.schedule.space import Sketch
from retune.targets.cpu.space import cpu_space
from retune.targets.devices import target_of
from retune.targets.fusion import accesses
from retune.targets.tiling import CPU, GPU
from tests.support.dags import dense
from tests.support.oracle import assert_items_agree

PAGE = Path(__file__).parents[2] / "docs" / "design.md"
DAG = dense(6, 8, 32)
DECIDED = {"tile.z.i": (1, 3), "tile.z.j": (1, 2), "unroll.y": (2,)}


@cache
def sketch() -> Sketch:
    return cpu_space(from_dag(DAG), GENERIC_CPU).sketch("cpu.v16.loops.pixels_slow")


@cache
def candidate() -> Program:
    return sketch().instantiate(sketch().row(DECIDED))


def roles() -> str:
    stage = accesses(Schedule(from_dag(DAG)), "y")
    lines = [f"results  {_names(stage.results)}", f"deep     {_names(stage.deep)}"]
    for operand in stage.operands:
        moving = sorted(v.name for v in operand.moving)
        lines.append(f"{operand.load.buffer}        moved by {', '.join(moving)}")
    return "\n".join(lines)


def _names(loops: object) -> str:
    return ", ".join(loop.var.name for loop in loops)


def levels() -> str:
    return "\n".join(
        f"{name}: {', '.join(level.name for level in known)}"
        for name, known in (("CPU", CPU), ("GPU", GPU))
    )


def nest(program: Program) -> str:
    """The loops of a program, without its declarations and statements."""
    lines = str(program).splitlines()
    return "\n".join(line[2:] for line in lines if line.lstrip().startswith("for "))


@cache
def sized() -> tuple[ProgramSource, tuple[Condition, ...]]:
    """The candidate for any number of rows, chosen for six of them."""
    with assuming({"rows": 6}) as assumed:
        program = from_dag(dense(dim_of(Size("rows", 1, 64)), 8, 32))
        known = cpu_space(program, GENERIC_CPU).sketch("cpu.v16.loops.pixels_slow")
        source = lower(known.instantiate(known.row(DECIDED)), target_of(GENERIC_CPU))
    return source, assumed.conditions


def launch() -> str:
    (made,) = sized()[0].launches
    sizes = ", ".join(map(str, made.global_size))
    return f"{', '.join(made.args)}\n{sizes}"


def body(source: ProgramSource) -> str:
    text = source.text
    inner = text[text.index("const int3 group)\n{\n") :]
    return inner[inner.index("{\n") + 2 : inner.index("\n}\n")]


BLOCKS: dict[str, Callable[[], str]] = {
    "expression": lambda: str(DAG),
    "roles": roles,
    "levels": levels,
    "trace": lambda: "\n".join(str(sketch().trace).splitlines()[:8]),
    "nest": lambda: nest(sketch().program),
    "conditions": lambda: "\n".join(map(str, sketch().constraints)),
    "candidate": lambda: nest(candidate()),
    "passes": lambda: "\n".join(label for label, _ in PASSES),
    "text": lambda: body(lower(candidate(), target_of(GENERIC_CPU))),
    "sizes": lambda: "\n".join(
        line for line in body(sized()[0]).splitlines() if re.search(r"\brows|const int t", line)
    ),
    "launch": launch,
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


def test_the_program_for_any_number_of_rows_has_no_condition():
    assert not sized()[1]
