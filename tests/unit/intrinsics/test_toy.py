"""An intrinsic of one's own is one entry: it is matched, lowered, printed, and right."""

from collections.abc import Iterator

import pytest

from retune.codegen.lower import lower
from retune.codegen.target import CPU
from retune.core.dtypes import INT8, INT32, UINT8
from retune.core.errors import ScheduleError
from retune.intrinsics import (
    Implementation,
    Intrinsic,
    MatrixOperand,
    Signature,
    register_intrinsic,
)
from retune.intrinsics.intrinsic import _KNOWN
from retune.ir.expr import cast, maximum, minimum
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, compute, placeholder, reduce_axis
from retune.schedule.schedule import Schedule
from tests.support.oracle import assert_same_meaning


def differences(rows: int, inner: int, outer: int, dtype: str = UINT8) -> Dag:
    """Sums of absolute differences of bytes of `x` and `w`."""
    x = placeholder("x", (rows, inner), dtype)
    w = placeholder("w", (outer, inner), dtype, constant=True)
    k = reduce_axis("k", inner)

    def distance(i, j):
        return _distance(x[i, k], w[j, k])

    return Dag((compute("y", (rows, outer), distance, [x, w], reduce=(k,)),))


def _distance(a, b):
    return cast(maximum(a, b), INT32) - cast(minimum(a, b), INT32)


def _text(signature: Signature) -> list[str]:
    """Byte after byte."""
    lanes = signature.lanes if signature.lanes > 1 else ""
    byte = f"convert_int{lanes}(({{0}} >> {{1}}) & 255)"
    a, b = ([byte.format(name, shift) for shift in (0, 8, 16, 24)] for name in "ab")
    sums = (f"convert_int{lanes}(abs_diff({x}, {y}))" for x, y in zip(a, b, strict=True))
    return [f"return sum + {' + '.join(sums)};"]


@pytest.fixture
def toy() -> Iterator[Intrinsic]:
    plain = Implementation(name="plain", takes=lambda _: True, text={"OpenCL C": _text})
    operands = (MatrixOperand("a", (UINT8,), 4), MatrixOperand("b", (UINT8,), 4))
    yield register_intrinsic(
        Intrinsic(
            name="sad4",
            k=4,
            operands=operands,
            combine=lambda a, b, _: _distance(a, b),
            implementations=(plain,),
        )
    )
    del _KNOWN["sad4"]


def scheduled(dag: Dag) -> Schedule:
    s = Schedule(from_dag(dag, "net"))
    near = s.split("y.k", [4])[1]
    s.tensorize(near, "sad4")
    return s


def test_a_toy_intrinsic_keeps_the_meaning_and_is_called(toy: Intrinsic):
    dag = differences(3, 8, 5)
    s = scheduled(dag)
    assert_same_meaning(dag, s.program)
    text = lower(s.program, CPU).text
    assert "static int sad4_uu_1(const uint a, const uint b, const int sum)" in text
    assert "// sad4.plain" in text


def test_what_it_does_not_take_is_refused(toy: Intrinsic):
    with pytest.raises(ScheduleError, match=r"with a of uint8, b of uint8; got sum of"):
        scheduled(differences(3, 8, 5, INT8))


def test_names_are_unique(toy: Intrinsic):
    with pytest.raises(ValueError, match="'sad4' exists already"):
        register_intrinsic(toy)


def test_it_is_not_known_without_its_entry():
    with pytest.raises(ScheduleError, match=r"no intrinsic 'sad4'; there are dot2, dot4"):
        scheduled(differences(3, 8, 5))


def test_a_device_uses_the_best_way_that_it_offers():
    from retune.intrinsics.dot4 import DOT4

    us = Signature((UINT8, INT8), 8)
    assert DOT4.implementation(us, ("dot4.avx2", "dot4.vnni")).name == "vnni"
    assert DOT4.implementation(us, ("dot4.avx2",)).name == "avx2"
    assert DOT4.implementation(us, ()).name == "plain"
    assert DOT4.implementation(Signature((INT8, INT8), 8), ("dot4.vnni",)).name == "plain"
