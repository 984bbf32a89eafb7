"""Programs for all values of counts: each count is served by one of them."""

from itertools import product
from math import prod

import pytest

from retune.bundle.runtime.hosting import CountedValue
from retune.codegen.source import KernelLaunch
from retune.core.dims import Size, apart, assuming, at, dim_of
from retune.core.errors import InputError
from retune.search.alternatives import covering_counts

FOUND, KEPT = Size("found", 0, 40, counted=True), Size("kept", 0, 9, counted=True)
N, M = dim_of(FOUND), dim_of(KEPT)


def _launch(*global_size: int) -> KernelLaunch:
    return KernelLaunch(
        kernel="k",
        args=("y",),
        writes=("y",),
        global_size=global_size,
        local_size=(1,) * len(global_size),
        label="k",
        flops=8,
        bytes=4,
    )


def test_each_count_with_work_is_served_once() -> None:
    made: list[str] = []

    def make() -> list[str]:
        made.append("wide" if N * M >= 16 and M > 2 else "narrow")
        return made[-1:]

    with apart() as assumed:
        ((*alternatives,),) = covering_counts([FOUND, KEPT], N * M, make)
    assert not assumed.conditions and len(alternatives) > 2
    launches = [each.launch(_launch(N + 1, M)) for each in alternatives]
    ranges = [launch.global_size for launch in launches]
    for found, kept in product(FOUND.values, KEPT.values):
        values = {"found": found, "kept": kept}
        runs = [n for n, each in enumerate(ranges) if prod(at(g, values) for g in each)]
        assert len(runs) <= 1
        if found * kept:
            wide = found * kept >= 16 and kept > 2
            assert alternatives[runs[0]].made == ("wide" if wide else "narrow")
            assert at(launches[runs[0]].flops, values) == 8


def test_conditions_on_other_sizes_are_those_of_the_program() -> None:
    batch = dim_of(Size("batch", 1, 8))
    with assuming({"batch": 4}) as assumed:
        ((only,),) = covering_counts([FOUND], N, lambda: [batch > 2])
    assert only.launch(_launch(N)).global_size == (N,)
    assert [str(condition) for condition in assumed.conditions] == ["batch > 2"]
    with assuming({"batch": 4}), pytest.raises(InputError, match="give batch single extents"):
        covering_counts([FOUND], N, lambda: [batch * N > 20])


def test_too_many_programs_are_refused() -> None:
    with pytest.raises(InputError, match="more than 16 would be needed for one task"):
        covering_counts([FOUND], N, lambda: [int(N)])


def test_a_count_that_no_launch_serves_is_noticed() -> None:
    value = CountedValue("k", 8 * N, ((N // 16, 1), (0, 1)))
    assert value.is_made({}) and value.is_made({"found": 0}) and value.is_made({"found": 16})
    assert not value.is_made({"found": 15})


def test_conditions_on_further_counts_are_taken_in() -> None:
    with apart():
        (alternatives,) = covering_counts([FOUND], N, lambda: [N + M > 12])
    served = {each.made: each.conditions for each in alternatives}
    assert {*served} == {True, False}
    assert all({*c.dim.sizes} == {FOUND, KEPT} for own in served.values() for c in own)
