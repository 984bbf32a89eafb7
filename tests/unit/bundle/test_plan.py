"""Each invariant of a plan has one check, which names the place and what it expected."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from retune.bundle.invariants import verify_plan
from retune.bundle.plan import (
    Alias,
    NetworkPlan,
)
from retune.codegen.source import ProgramBuffer
from retune.core.dtypes import FLOAT32
from retune.core.errors import VerifyError
from tests.support.programs import kernels_of, texts_of

Change = Callable[..., NetworkPlan]


def test_a_good_plan_passes(plan: NetworkPlan) -> None:
    verify_plan(plan)


def test_aliases_share_the_memory_of_their_root(plan: NetworkPlan) -> None:
    roots = plan.roots
    assert (roots["flat"], roots["eight"], roots["x"]) == ("sum", "wide", "x")


def test_long_chains_of_aliases_are_followed_once(plan: NetworkPlan) -> None:
    """Somebody's bundle may have one of any length: step by step from each name takes hours."""
    names = [f"link {number}" for number in range(20_000)]
    links = [ProgramBuffer(name=n, dtype=FLOAT32, elements=1, role="temp", shape=()) for n in names]
    aliases = [Alias(value=a, of=b) for a, b in pairwise(names)]
    chained = replace(plan, buffers=tuple(links), aliases=tuple(aliases))
    assert chained.roots == dict.fromkeys(names, names[-1])


def test_memory_with_an_output_alias_is_an_output(plan: NetworkPlan) -> None:
    roles = plan.roles
    assert (roles["wide"], roles["sum"], roles["x"]) == ("output", "temp", "input")
    assert "eight" not in roles


def test_an_output_may_be_an_alias_of_an_input(plan: NetworkPlan) -> None:
    same = ProgramBuffer(name="same", dtype=FLOAT32, elements=32, role="output", shape=(32,))
    echo = replace(
        plan,
        buffers=(*plan.buffers, same),
        outputs=(*plan.outputs, "same"),
        aliases=(*plan.aliases, Alias(value="same", of="x")),
    )
    verify_plan(echo)
    assert echo.roles["x"] == "input"


def test_a_bundle_names_no_scheduler(plan: NetworkPlan) -> None:
    """Else whoever opens somebody's bundle on its own device would connect to somebody's farm."""
    elsewhere = replace(plan.device, name="farm:pc@tls://example.org:8786")
    _refused(replace(plan, device=elsewhere), "expected a device of a machine")


def test_duplicate_names_are_refused(plan: NetworkPlan) -> None:
    twice = replace(plan, buffers=(*plan.buffers, plan.buffers[0]))
    _refused(twice, "buffer x: expected one buffer of each name")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dtype": "complex64"}, "buffer sum: expected one of float32"),
        ({"elements": 0, "shape": (0,)}, "buffer sum: expected at least one element"),
        ({"elements": 1 << 61, "shape": (1 << 61,)}, r"less than \d+ bytes"),
        ({"shape": (4, 9)}, r"expected 36 elements of shape \(4, 9\); got 32"),
        ({"shape": (-4, -8)}, r"extents of at least 0; got \(-4, -8\)"),
    ],
)
def test_buffer_types_are_checked(
    plan: NetworkPlan, with_buffer: Change, fields: dict[str, object], message: str
) -> None:
    _refused(with_buffer(plan, "sum", **fields), message)


def test_packed_weights_may_be_padded(plan: NetworkPlan, with_buffer: Change) -> None:
    padded = with_buffer(plan, "bias", elements=64)
    verify_plan(replace(padded, weights={"bias": np.zeros(64, np.float32)}))


def _through_image(plan: NetworkPlan) -> NetworkPlan:
    """The plan whose first kernel has an image as its second argument."""
    texts = texts_of(plan)
    text = texts["add"].replace("__global const float *restrict b", "read_only image2d_t b")
    return replace(plan, kernels=kernels_of({**texts, "add": text}))


def test_a_weight_may_be_an_image(plan: NetworkPlan, with_buffer: Change) -> None:
    verify_plan(with_buffer(_through_image(plan), "bias", image=8))


def test_images_are_checked(plan: NetworkPlan, with_buffer: Change) -> None:
    through = _through_image(plan)
    whole = "image bias: expected a weight of float32 in whole rows of"
    _refused(with_buffer(through, "bias", image=3), f"{whole} 3")
    _refused(with_buffer(through, "bias", image=-8), f"{whole} -8")
    _refused(with_buffer(plan, "bias", image=8), r"expected images as arguments \[\]; got \[1\]")
    _refused(through, r"expected images as arguments \[1\]; got \[\]")


@pytest.mark.parametrize("name", ["sum", "x", "twice"])
def test_weights_alone_are_images(plan: NetworkPlan, with_buffer: Change, name: str) -> None:
    _refused(with_buffer(plan, name, image=8), f"image {name}: expected a weight")


def test_the_interface_lists_inputs_and_outputs(plan: NetworkPlan) -> None:
    _refused(replace(plan, inputs=()), "inputs: expected the buffers of role input")
    _refused(replace(plan, outputs=("twice",)), "outputs: expected the buffers of role output")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({}, "one array for each weight buffer; got mismatch at \\['bias'\\]"),
        ({"bias": np.zeros(31, np.float32)}, "32 elements of float32; got 31 of float32"),
        ({"bias": np.zeros(32, np.float64)}, "32 elements of float32; got 32 of float64"),
    ],
)
def test_weights_fit_their_buffers(
    plan: NetworkPlan, weights: dict[str, np.ndarray], message: str
) -> None:
    _refused(replace(plan, weights=weights), message)


@pytest.mark.parametrize(
    ("alias", "message"),
    [
        (Alias(value="four", of="nowhere"), "names of buffers of the plan; got nowhere"),
        (Alias(value="flat", of="four"), "one alias for each value"),
        (Alias(value="bias", of="four"), "a temp or output as the value; got weight"),
        (Alias(value="sum", of="flat"), "a cycle: sum -> flat -> sum"),
        (Alias(value="four", of="four"), "a cycle: four -> four"),
    ],
)
def test_aliases_are_checked(plan: NetworkPlan, alias: Alias, message: str) -> None:
    _refused(replace(plan, aliases=(*plan.aliases, alias)), message)


def test_aliases_have_one_size(plan: NetworkPlan, with_buffer: Change) -> None:
    _refused(with_buffer(plan, "flat", elements=16, shape=(16,)), "expected 32 elements of float32")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kernel": "none"}, "a kernel of the plan; got none"),
        ({"args": ()}, "a kernel that writes an argument; got writes to none"),
        ({"writes": ()}, "a kernel that writes an argument; got writes to none"),
        ({"args": ("sum", "who")}, "names of buffers of the plan; got who"),
        ({"writes": ("four",)}, "writes that are arguments"),
        ({"global_size": (32, 1, 0)}, "positive ranges"),
        ({"local_size": (5, 1, 1)}, "a global size that the local size divides"),
        ({"local_size": (1, 1)}, "as many local as global"),
        ({"global_size": (8192,), "local_size": (8192,)}, "at most 4096 work-items"),
        ({"global_size": (1 << 31, 1 << 31, 1)}, r"less than \d+ work-items"),
        ({"flops": -1}, "counts of its work; got -1 operations"),
        ({"flops": 10**400}, "counts of its work"),
        ({"bytes": 1 << 62}, "counts of its work"),
        ({"args": ("flat", "x")}, "writes to temps or outputs; got input x"),
        ({"args": ("twice", "bias")}, "writes to temps or outputs; got weight bias"),
        ({"args": ("flat", "sum")}, "memory that is not read through another argument"),
        ({"args": ("four", "twice")}, "four written by an earlier step"),
    ],
)
def test_launches_are_checked(
    plan: NetworkPlan, with_launch: Change, fields: dict[str, object], message: str
) -> None:
    _refused(with_launch(plan, 1, **fields), message)


def test_writes_may_be_any_arguments(plan: NetworkPlan, with_launch: Change) -> None:
    verify_plan(with_launch(plan, 1, args=("twice", "flat"), writes=("twice",)))


def test_outputs_are_written(plan: NetworkPlan) -> None:
    _refused(replace(plan, launches=plan.launches[:3]), "output eight: expected a step")


def test_a_kernel_text_defines_its_entry(plan: NetworkPlan) -> None:
    texts = {**texts_of(plan), "other": "__kernel void another(__global float *y) {}"}
    _refused(
        replace(plan, kernels=kernels_of(texts)), "kernel other: expected a text that defines other"
    )


def _refused(plan: NetworkPlan, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify_plan(plan)
