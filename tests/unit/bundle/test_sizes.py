"""Plans with sizes: what holds of them, at which sizes a variant runs, and their form on disk."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retune.bundle.format import read_bundle, write_bundle
from retune.bundle.invariants import verify_plan
from retune.bundle.manifest import Malformed, from_manifest, read_manifest, to_manifest
from retune.bundle.memory import plan_memory
from retune.bundle.plan import Alias, NetworkPlan, renamed
from retune.bundle.runtime.executor import callees_of
from retune.bundle.runtime.inputs import InputCheck
from retune.bundle.runtime.module import sample_inputs
from retune.bundle.runtime.placement import lay_out
from retune.bundle.sizes import corners
from retune.bundle.variants import join_plans
from retune.codegen.source import KernelLaunch, ProgramBuffer
from retune.core.dims import Size, dim_of, parse_condition
from retune.core.errors import InputError, VerifyError
from retune.core.target import GENERIC_CPU
from tests.support.programs import texts_of
from tests.support.sized import BATCH, STEPS, WEIGHTS, batch, sized_plan, steps

PLAN = sized_plan(GENERIC_CPU)
FEW = parse_condition("batch < 5", {"batch": BATCH})
WIDE = dim_of(Size("batch", 1, 10))


def _with_buffer(name: str, **fields: object) -> NetworkPlan:
    changed = (replace(b, **fields) if b.name == name else b for b in PLAN.buffers)  # type: ignore[arg-type]
    return replace(PLAN, buffers=tuple(changed))


def _with_launch(**fields: object) -> NetworkPlan:
    first, *others = PLAN.launches
    return replace(PLAN, launches=(replace(first, **fields), *others))  # type: ignore[arg-type]


def _with_variant(**fields: object) -> NetworkPlan:
    first, second = PLAN.variants
    return replace(PLAN, variants=(first, replace(second, **fields)))  # type: ignore[arg-type]


def _with_size(**fields: object) -> NetworkPlan:
    first, second = PLAN.sizes
    return replace(PLAN, sizes=(replace(first, **fields), second))  # type: ignore[arg-type]


BROKEN: dict[str, Callable[[], NetworkPlan]] = {
    "size batch: expected a buffer of role size, of one int32": lambda: _with_size(buffer="y"),
    "size batch: expected an axis of an input": lambda: _with_size(axis=2),
    "size batch: expected names of buffers of the plan": lambda: _with_size(input="q"),
    "sizes: expected the buffers of role size": lambda: replace(PLAN, sizes=PLAN.sizes[:1]),
    "sizes: expected one of each name": lambda: replace(PLAN, sizes=PLAN.sizes[:1] * 2),
    r"launch twice \(twice\): expected sizes of the plan; got batch=1..10": lambda: _with_launch(
        global_size=(WIDE, 1, 1)
    ),
    r"launch twice .*: expected a global size that the local": lambda: _with_launch(
        local_size=(4, 1, 1)
    ),
    "buffer y: expected 40 elements of shape": lambda: _with_buffer("y", shape=(40,)),
    "buffers: expected those that a variant uses; got .'lone'": lambda: replace(
        PLAN, buffers=(*PLAN.buffers, replace(PLAN.buffers[3], name="lone"))
    ),
    "variant all sizes: expected launches from 6 on": lambda: _with_variant(first=5),
    "variants: expected all launches and host steps": lambda: replace(
        PLAN, launches=(*PLAN.launches, PLAN.launches[-1])
    ),
    "expected no loop with launches of others": lambda: replace(
        PLAN, loops=(replace(PLAN.loops[0], end=7),)
    ),
    "variant batch == 1: expected some of .*; got none": lambda: _with_variant(
        conditions=PLAN.variants[0].conditions
    ),
    "samples: expected some of each input": lambda: replace(
        PLAN, samples={"x": np.zeros((1, 2, 3, 8), "f4"), "bias": np.zeros((1, 2, 5), "f4")}
    ),
    "values of x: expected 3 integers; got 16": lambda: replace(PLAN, values={"x": (4, 4, 4)}),
    "values of y: expected an input": lambda: replace(PLAN, values={"y": (4,)}),
    "values of bias: expected sizes of the plan": lambda: replace(PLAN, values={"bias": (WIDE,)}),
    "launch product .*: expected y written by an earlier step": lambda: replace(
        PLAN, launches=(*PLAN.launches[:6], PLAN.launches[7], *PLAN.launches[7:])
    ),
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_plan_is_refused(message: str) -> None:
    with pytest.raises(VerifyError, match=f"plan sized: .*{message}"):
        verify_plan(BROKEN[message]())


def test_parts_of_a_buffer_may_be_read_by_the_whole_alone() -> None:
    """As parts of a split that are joined again where they are."""
    part = Alias(value="part", of="y", storage=None)
    buffers = (*PLAN.buffers, replace(PLAN.buffer("y"), name="part"))
    verify_plan(replace(PLAN, buffers=buffers, aliases=(*PLAN.aliases, part)))


def test_samples_of_sizes_of_the_plan(tmp_path: Path) -> None:
    arrays = {"x": np.zeros((1, 2, 4, 8), "f4"), "bias": np.zeros((1, 2, 5), "f4")}
    found = read_bundle(write_bundle(replace(PLAN, samples=arrays), tmp_path / "module"))
    assert found.samples.keys() == arrays.keys()
    assert found.at({"batch": 2, "steps": 4}).samples and not found.at(found.largest).samples


def test_a_plan_at_sizes_is_a_plan_of_fixed_shapes() -> None:
    verify_plan(one := PLAN.at({"batch": 1, "steps": 4}))
    assert [launch.kernel for launch in one.launches[2:4]] == ["sums_of_one", "start"]
    assert (one.buffer("z1").elements, one.loops[0].first) == (20, 4)
    several = PLAN.at({"batch": 3, "steps": 4})
    assert several.launches[1].global_size == (3, 1, 1)
    assert several.launches[0].flops == 120
    assert several.loops == one.loops
    assert "sums_of_one" not in texts_of(several)


def test_variants_share_the_arena() -> None:
    """Memory is for the largest sizes; the temporaries of one variant are not alive in another."""
    memory = plan_memory(PLAN)
    alone = plan_memory(PLAN.at(PLAN.largest))
    assert memory.arena_bytes == alone.arena_bytes
    assert memory.io_bytes == alone.io_bytes
    places = lay_out(PLAN, memory).memory
    assert places["y"].bytes == 4 * 8 * BATCH.most * STEPS.most


def test_corners_are_sizes_of_each_variant() -> None:
    assert PLAN.largest == {"batch": 9, "steps": 12}
    found = [tuple(values.values()) for values in PLAN.corners]
    assert sorted(found) == [(0, 2), (1, 2), (1, 12), (9, 12)]
    assert found[-1] == (9, 12), "a module is ready for the largest sizes"
    assert _with_variant(conditions=(FEW,)).largest == {"batch": 4, "steps": 12}


def test_corners_of_large_sizes_are_exact() -> None:
    """Products that no 64 bits hold choose as they do one by one."""
    huge = Size("huge", 1, 1 << 40)
    above = parse_condition(f"huge*huge*huge >= {1 << 70}", {"huge": huge})
    variants = [replace(PLAN.variants[0], conditions=(above,)), replace(PLAN.variants[1])]
    found = dict(corners([huge], variants, largest=True))
    assert found == {0: {"huge": 1 << 40}}, "those for the others are too far away"
    assert dict(corners([huge], variants, largest=False)) == {1: {"huge": 1}}


def test_what_the_manifest_says_of_extents() -> None:
    """Texts, and one of each size; what is damaged says where."""
    written = to_manifest(PLAN)
    assert written["buffers"][0]["shape"] == ["batch", "2*(steps // 2)", 8]  # type: ignore[index, call-overload]
    texts = texts_of(PLAN)
    found = from_manifest(read_manifest(written), texts, PLAN.weights)
    assert to_manifest(found) == written
    written["buffers"][0]["elements"] = "64*batch*width"  # type: ignore[index, call-overload]
    with pytest.raises(Malformed, match=r"extents: .*expected a size of batch, steps, got 'width'"):
        from_manifest(read_manifest(written), texts, PLAN.weights)


def test_groups_are_those_of_the_largest_launch() -> None:
    assert callees_of(PLAN)[1].groups[0] == (batch * steps + 3) // 4


def test_plans_are_joined_as_variants() -> None:
    """Weights of equal contents and kernels of equal text are there once; the rest has other names.

    An output that lies elsewhere in one of them has a buffer of its own there.
    """
    one, several = _alone(0), _alone(1)
    turned = replace(
        several,
        buffers=(*several.buffers, replace(several.buffer("sum"), name="root", role="temp")),
        launches=tuple(_with("sum", "root", launch) for launch in several.launches),
        aliases=(Alias(value="sum", of="root"),),
        weights={"w": WEIGHTS.copy()},
    )
    turned = renamed(turned, {"w": "v"}, {})
    conditions = [each.conditions for each in PLAN.variants]
    verify_plan(made := join_plans([one, several, turned], [conditions[0], [FEW], ()]))
    assert [variant.first for variant in made.variants] == [0, 6, 12]
    assert made.variants[2].outputs == ("sum_v2", "state")
    assert list(made.weights) == ["w"]
    assert sorted(texts_of(made)) == sorted(texts_of(PLAN))
    last = made.at({"batch": 7, "steps": 2})
    assert last.outputs == ("sum", "state") and last.aliases[0].value == "sum"
    assert plan_memory(made).arena_bytes == plan_memory(PLAN).arena_bytes
    assert to_manifest(made)["variants"][2]["outputs"] == ["sum_v2", "state"]  # type: ignore[index, call-overload]


def _alone(number: int) -> NetworkPlan:
    """A variant as a plan for all sizes."""
    variant = PLAN.variants[number]
    launches = PLAN.launches[variant.first : variant.end]
    used = {name for launch in launches for name in launch.args}
    called = {launch.kernel for launch in launches}
    (loop,) = PLAN.loops[number : number + 1]
    return replace(
        PLAN,
        kernels=tuple(kernel for kernel in PLAN.kernels if kernel.name in called),
        buffers=tuple(b for b in PLAN.buffers if b.name in used or b.role == "size"),
        launches=launches,
        loops=(replace(loop, first=4, end=6),),
        variants=(),
    )


def _with(old: str, new: str, launch: KernelLaunch) -> KernelLaunch:
    args, writes = (
        tuple(new if n == old else n for n in names) for names in (launch.args, launch.writes)
    )
    return replace(launch, args=args, writes=writes)


def test_kernels_of_one_name_are_told_apart() -> None:
    """Other functions and macros that are named after one are renamed with it."""
    several = _alone(1)
    text = several.kernels[2].text.replace("found +=", "found -=")
    other = replace(
        several,
        kernels=(
            *several.kernels[:2],
            replace(several.kernels[2], text=text),
            *several.kernels[3:],
        ),
    )
    made = join_plans([several, other, other], [(FEW,), (), ()])
    names = [launch.kernel for launch in made.launches if launch.kernel.startswith("sums")]
    assert names == ["sums", "sums_v2", "sums_v2"]
    assert "sums_v2_group(z, bias, sum" in texts_of(made)["sums_v2"]
    with pytest.raises(InputError, match=r"outputs: expected .* as in all variants"):
        join_plans([several, replace(several, outputs=("sum",))], [(), ()])


def _stating() -> NetworkPlan:
    """The plan, with an input that says how many steps there are, and twice as many."""
    ends = ProgramBuffer(name="ends", dtype="int64", elements=2, role="input", shape=(2,))
    first, second = PLAN.sizes
    return replace(
        PLAN,
        buffers=(*PLAN.buffers, ends),
        inputs=(*PLAN.inputs, "ends"),
        sizes=(first, replace(second, input="ends", axis=None)),
        values={"ends": (2 * steps, steps - 2)},
    )


def test_elements_of_an_input_may_be_sizes(tmp_path: Path) -> None:
    plan = read_bundle(write_bundle(_stating(), tmp_path / "module"))
    assert plan.values == _stating().values and plan.sizes[1].axis is None
    arrays = sample_inputs(plan, 0, {"batch": 2, "steps": 6})
    assert arrays["ends"].tolist() == [12, 4]
    check = InputCheck(plan)
    assert check.sizes(list(arrays.values())) == {"batch": 2, "steps": 6}
    assert check.key(list(arrays.values()))[-1] == (12, 4)
    for elements, message in (
        ([8, 4], r"ends: expected .*, which is \[12, 4\] by the other inputs; got \[8, 4\]"),
        ([12, 2], "input x: expected .*; for batch=2 by axis 0 of x, steps=4 by ends it is"),
        ([12, 3], "input ends: element 1: expected 0 to 10 in steps of 2; got 3; .* with --value"),
        ([28, 12], "input ends: element 0: expected 4 to 24 in steps of 4; got 28"),
    ):
        with pytest.raises(InputError, match=message):
            check.sizes([*list(arrays.values())[:2], np.array(elements)])
