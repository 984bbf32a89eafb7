"""Which jobs are compiled together, and what becomes of those whose program fails."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from retune.codegen.source import KernelLaunch, KernelText, ProgramBuffer, ProgramSource
from retune.core.dtypes import FLOAT32
from retune.core.target import GENERIC_CPU
from retune.device.measure.child import ChildLostError
from retune.device.measure.messages import Build, Refused, Reply, Request, Warm
from retune.device.measure.workload import MeasureOptions
from retune.device.opencl.building import MAX_SHARING, Builder
from tests.support.measure import FakeChild

OPTIONS = MeasureOptions()


def job(name: str, *, alone: bool = True, options: tuple[str, ...] = ()) -> ProgramSource:
    launch = KernelLaunch(
        kernel="k",
        args=("y",),
        writes=("y",),
        global_size=(1, 1, 1),
        local_size=(1, 1, 1),
        flops=1,
        bytes=4,
    )
    return ProgramSource(
        kernels=(KernelText(name="k", text=name, single_item=alone),),
        options=options,
        launches=(launch,),
        buffers=(ProgramBuffer(name="y", dtype=FLOAT32, elements=1, role="output"),),
    )


def jobs(count: int) -> list[ProgramSource]:
    return [job(f"job {number}") for number in range(count)]


def children(
    count: int, answer: Callable[[Request], Reply | Exception | None] = lambda _: None
) -> list[FakeChild]:
    return [FakeChild(answer) for _ in range(count)]


def builder_of(fakes: list[FakeChild]) -> Builder:
    return Builder(fakes)


def programs(fakes: list[FakeChild]) -> list[tuple[str, ...]]:
    """The texts of each program that was asked for."""
    builds = [item for fake in fakes for item in fake.seen if isinstance(item, Build)]
    return [tuple(each.text for each in build.jobs.values()) for build in builds]


@pytest.mark.parametrize(
    ("count", "helpers", "sizes"),
    [
        (1, 1, [1]),
        (4, 1, [4]),
        (5, 1, [2, 3]),
        (2, 2, [1, 1]),
        (6, 2, [3, 3]),
        (8, 2, [4, 4]),
        (9, 2, [2, 2, 2, 3]),
        (0, 2, []),
    ],
)
def test_jobs_are_spread_evenly_over_the_children(count: int, helpers: int, sizes: list[int]):
    fakes = children(helpers)
    built = builder_of(fakes).build(jobs(count), OPTIONS)
    assert sorted(map(len, programs(fakes))) == sizes
    assert max(sizes, default=0) <= MAX_SHARING
    assert [each.request.jobs[each.index] for each in built] == jobs(count)
    assert len({each.index for each in built}) == count


def test_jobs_with_long_texts_go_to_different_programs():
    fakes = children(2)
    mixed = [job(name) for name in ("long 0", "a", "long 1", "b")]
    built = builder_of(fakes).build(mixed, OPTIONS)
    assert sorted(programs(fakes)) == [("long 0", "a"), ("long 1", "b")]
    assert [each.request.jobs[each.index] for each in built] == mixed


def test_only_single_item_jobs_of_the_same_options_share_a_program():
    fakes = children(1)
    fast = [job(f"fast {n}", options=("-fast",)) for n in range(2)]
    grouped = [job(f"grouped {n}", alone=False) for n in range(2)]
    builder_of(fakes).build([*jobs(2), *fast, *grouped], OPTIONS)
    assert sorted(programs(fakes)) == [
        ("fast 0", "fast 1"),
        ("grouped 0",),
        ("grouped 1",),
        ("job 0", "job 1"),
    ]


def test_on_a_gpu_every_job_has_a_program_of_its_own():
    fakes = children(1)
    fakes[0].spec = replace(GENERIC_CPU, device_class="gpu")
    builder_of(fakes).build(jobs(3), OPTIONS)
    assert sorted(map(len, programs(fakes))) == [1, 1, 1]


def test_every_program_is_launched_once_and_held():
    fakes = children(2)
    built = builder_of(fakes).build(jobs(8), OPTIONS)
    assert [fake.count(Warm) for fake in fakes] == [fake.count(Build) for fake in fakes]
    assert fakes[0].holds | fakes[1].holds == {each.index for each in built}


@pytest.mark.parametrize(
    ("kind", "outcome", "status", "error"),
    [
        (Build, Refused(status="compile_error", error="no"), "compile_error", "no"),
        (Warm, Refused(status="launch_error", error="no"), "launch_error", "no"),
        (Build, ChildLostError("timeout", "killed"), "timeout", "compilation: killed"),
        (
            Warm,
            ChildLostError("crash", "died"),
            "crash",
            "the first launch of one work-group: died",
        ),
    ],
)
def test_a_program_that_fails_is_taken_apart(kind: type, outcome, status: str, error: str):
    building: dict[int, ProgramSource] = {}

    def answer(request: Request) -> Reply | Exception | None:
        if isinstance(request, Build):
            building.clear()
            building.update(request.jobs)
        bad = any(each.text == "job 2" for each in building.values())
        return outcome if bad and isinstance(request, kind) else None

    fakes = children(1, answer)
    built = builder_of(fakes).build(jobs(4), OPTIONS)
    assert programs(fakes)[1:] == [("job 0",), ("job 1",), ("job 2",), ("job 3",)]
    refused = [each.refused for each in built]
    assert [r is None for r in refused] == [True, True, False, True]
    assert refused[2] is not None
    assert (refused[2].status, refused[2].error) == (status, error)
    assert [len(each.request.jobs) for each in built] == [1, 1, 1, 1]
    assert [each.request.jobs[each.index] for each in built] == jobs(4)


def test_a_job_takes_its_share_of_the_programs_time():
    built = builder_of(children(1)).build(jobs(4), OPTIONS)
    assert len({each.build_s for each in built}) == 1


def test_equal_jobs_are_compiled_once():
    fakes = children(1)
    first, _, again = builder_of(fakes).build([*jobs(2), job("job 0")], OPTIONS)
    assert programs(fakes) == [("job 0", "job 1")]
    assert first == again


def test_a_job_that_comes_again_is_built_as_it_was():
    fakes = children(1)
    builder = builder_of(fakes)
    before = builder.build(jobs(4), OPTIONS)
    after = builder.build([job("new"), *jobs(4)[1:3]], OPTIONS)
    whole = ("job 0", "job 1", "job 2", "job 3")
    assert programs(fakes) == [whole, whole, ("new",)]
    assert [each.request.jobs[each.index] for each in after[1:]] == jobs(4)[1:3]
    assert not {each.index for each in before} & {each.index for each in after}


def test_when_a_known_program_fails_later_only_what_is_wanted_is_tried_alone():
    failing = False

    def answer(request: Request) -> Reply | None:
        alone = isinstance(request, Build) and len(request.jobs) == 1
        no = Refused(status="launch_error", error="out of memory")
        return no if failing and isinstance(request, Build) and not alone else None

    fakes = children(1, answer)
    builder = builder_of(fakes)
    builder.build(jobs(4), OPTIONS)
    failing = True
    (built,) = builder.build(jobs(1), OPTIONS)
    assert built.refused is None
    assert programs(fakes)[2:] == [("job 0",)]


def test_an_interrupt_does_not_wait_for_a_compiler_that_hangs():
    """One child breaks off as an interrupt would; the other one answers only when it is killed."""
    hanging = FakeChild(lambda _: None)
    breaking = FakeChild(lambda _: KeyboardInterrupt())

    def answer(_: Request) -> Reply | Exception | None:
        assert hanging.killed.wait(60.0), "nobody ended it"
        return ChildLostError("crash", "killed")

    hanging.answer = answer
    with pytest.raises(KeyboardInterrupt):
        builder_of([breaking, hanging]).build(jobs(8), OPTIONS)
    assert breaking.killed.is_set()
