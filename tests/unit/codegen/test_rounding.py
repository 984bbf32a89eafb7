"""Rounding is a macro, defined once for each kernel that uses it."""

import pytest

from retune.codegen.lower import lower
from retune.codegen.opencl.prelude import macro_of
from retune.codegen.opencl.renderer import RESERVED
from retune.codegen.target import CPU
from retune.ir.expr import Expr
from retune.ir.functions import FUNCTIONS, call
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, compute, placeholder
from retune.schedule.schedule import Schedule


def text_of(*names: str) -> str:
    x = placeholder("x", (16,))

    def value(i: Expr) -> Expr:
        found: Expr = x[i]
        for name in names:
            found = call(name, found * 0.5)
        return found

    s = Schedule(from_dag(Dag((compute("y", (16,), value, [x]),)), "net"))
    s.vectorize("y.i")
    return lower(s.program, CPU).text


def test_text(golden: object):
    assert text_of("round", "floor") == golden


ROUNDINGS = {f.name: f for f in FUNCTIONS.values() if f.builtin}


@pytest.mark.parametrize("name", ROUNDINGS)
def test_macros_stand_before_kernels_that_use_them(name: str):
    text, macro = text_of(name), macro_of(ROUNDINGS[name])
    assert text.count(f"#define {macro}(x)") == 2
    assert text.index(f"#ifndef {macro}") < text.index(f"{macro}((")
    others = {macro_of(entry) for entry in ROUNDINGS.values()} - {macro}
    assert not any(other in text for other in others)
    assert "#ifndef" not in text_of("sqrt")


def test_no_buffer_is_called_like_a_macro_or_function():
    names = {name for entry in ROUNDINGS.values() for name in (macro_of(entry), entry.opencl)}
    assert names <= RESERVED
