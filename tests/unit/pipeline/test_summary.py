"""What a run tells: a line for each stage that is done, and why a wrong bundle goes nowhere."""

from dataclasses import replace
from pathlib import Path

import pytest

from retune.codegen.source import ProgramBuffer
from retune.core.errors import VerifyError
from retune.core.results import OutputQuality
from retune.pipeline.manifest import Constraints, PrecisionManifest, Selection
from retune.pipeline.request import TuneRequest
from retune.pipeline.summary import (
    check_verified,
    event_of,
    has_packed_weights,
    precision_text,
    validated,
)
from tests.flows.fakes import FakeStages


def test_mixed_precision_is_told_with_the_noisiest_layers():
    done = PrecisionManifest(
        model_key="fake",
        stored="bfloat16",
        max_deviation=0.01,
        samples=4,
        random=True,
        kept=(*"abcdefgh",),
        layers=(),
        quality=(OutputQuality(output="y", cosine=1.0, top1=0.75, deviation=2e-3),),
    )
    assert precision_text(done) == (
        "mixed bfloat16, 8 of 0 layers in float32: deviation 2.0e-03 of the range (0.01 allowed), "
        "75.0% top-1 by 4 random samples; in float32: a, b, c, d, e, f, ..."
    )
    assert precision_text(replace(done, kept=())).endswith("by 4 random samples")


def test_smaller_values_promise_nothing_where_weights_are_packed():
    words = ProgramBuffer(name="q", dtype="int32", elements=3000, role="weight")
    scales = ProgramBuffer(name="s", dtype="float32", elements=800, role="weight")
    table = ProgramBuffer(name="positions", dtype="int32", elements=100, role="weight")
    maps = ProgramBuffer(name="x", dtype="float32", elements=1 << 20, role="temp")
    assert has_packed_weights([words, scales, table, maps])
    assert not has_packed_weights([scales, table, maps])
    assert not has_packed_weights([maps])


def test_a_stage_is_told_in_one_line_and_a_wrong_bundle_is_refused(tmp_path: Path):
    stages = FakeStages()
    request = TuneRequest(
        model="zoo:fake",
        out=str(tmp_path / "out"),
        records=str(tmp_path / "records"),
        work=str(tmp_path / "work"),
    )
    network = stages.stage_import(request)
    tasks = stages.stage_extract(request, network)
    tuned = stages.stage_compile(request, network, tasks, Selection(target="cpu"), "tuned")
    told = [event_of(request, done) for done in (network, tasks, tuned)]
    assert [event.stage for event in told] == ["import", "extract", "compile"]
    assert told[0].text.startswith(f"fake: {network.nodes} nodes, ")
    assert told[1].text.startswith(f"{len(tasks.tasks)} tasks; measures at most 3 min, until ")
    batched = event_of(request, replace(tasks, micro_batches=((2, 12),)))
    assert "tasks; 12 layers of a batch: 2 images at a time (micro-batches), " in batched.text
    assert told[2].text == f"{tuned.kernels} kernels, {tuned.launches} launches"

    hosted = event_of(request, replace(tuned, host_steps=("TopK", "NonMaxSuppression, Gather")))
    assert hosted.text == f"{told[2].text}, on the host: TopK; NonMaxSuppression, Gather"

    verified = stages.stage_verify(request, network, tuned)
    check_verified(tuned, verified)
    faster = validated(Constraints(ratio=0.891), verified)
    assert faster.startswith("faster than default schedules") and "0.891" not in faster
    assert validated(Constraints(), verified).startswith("default schedules; deviation ")
    wrong = replace(verified, max_rel=0.5, passed=False)
    with pytest.raises(VerifyError, match=r"within 1.0e-04 of the range .* got 5.0e-01; nothing"):
        check_verified(tuned, wrong)
