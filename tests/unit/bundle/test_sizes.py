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
from retune.bundle.plan import NetworkPlan
from retune.bundle.runtime.executor import callees_of
from retune.bundle.runtime.placement import lay_out
from retune.core.dims import Size, dim_of, parse_condition
from retune.core.errors import VerifyError
from retune.core.target import GENERIC_CPU
from tests.support.programs import texts_of
from tests.support.sized import BATCH, STEPS, batch, sized_plan, steps

PLAN = sized_plan(GENERIC_CPU)
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
        local_size=(2, 1, 1)
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
    "launch product .*: expected y written by an earlier step": lambda: replace(
        PLAN, launches=(*PLAN.launches[:6], PLAN.launches[7], *PLAN.launches[7:])
    ),
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_plan_is_refused(message: str) -> None:
    with pytest.raises(VerifyError, match=f"plan sized: .*{message}"):
        verify_plan(BROKEN[message]())


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
    places = lay_out(PLAN, memory).places
    assert places["y"].bytes == 4 * 8 * BATCH.most * STEPS.most


def test_corners_are_sizes_of_each_variant() -> None:
    assert PLAN.largest == {"batch": 9, "steps": 12}
    found = [tuple(values.values()) for values in PLAN.corners]
    assert sorted(found) == [(1, 2), (1, 12), (2, 2), (9, 12)]
    assert found[-1] == (9, 12), "a module is ready for the largest sizes"
    few = parse_condition("batch < 5", {"batch": BATCH})
    assert _with_variant(conditions=(few,)).largest == {"batch": 4, "steps": 12}


def test_what_the_manifest_says_of_extents() -> None:
    """Texts, and one of each size; what is damaged says where."""
    written = to_manifest(PLAN)
    assert written["buffers"][0]["shape"] == ["batch", "steps", 8]  # type: ignore[index, call-overload]
    texts = texts_of(PLAN)
    found = from_manifest(read_manifest(written), texts, PLAN.weights)
    assert to_manifest(found) == written
    written["buffers"][0]["elements"] = "64*batch*width"  # type: ignore[index, call-overload]
    with pytest.raises(Malformed, match=r"extents: .*expected a size of batch, steps, got 'width'"):
        from_manifest(read_manifest(written), texts, PLAN.weights)


def test_groups_are_those_of_the_largest_launch() -> None:
    assert callees_of(PLAN)[1].groups[0] == (batch * steps + 3) // 4
