"""Requests that cannot end well are refused before anything is done for them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retune import api
from retune.core.dtypes import BFLOAT16, TF32
from retune.core.errors import InputError
from retune.core.target import GENERIC_GPU
from retune.graph.quantize.settings import QuantizeSettings
from retune.intrinsics.warp32 import WARP32
from retune.pipeline.precision import precision_named
from retune.pipeline.request import TuneRequest, check_request


@pytest.fixture
def request_(tmp_path: Path) -> TuneRequest:
    return TuneRequest(
        model="zoo:mlp",
        out=str(tmp_path / "out"),
        records=str(tmp_path / "records"),
        work=str(tmp_path / "cache"),
    )


def test_a_good_one_leaves_no_trace(request_: TuneRequest, tmp_path: Path):
    check_request(request_)
    check_request(replace(request_, trials=0, patience=3, seed=9, minutes=0.5))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("trials", -1, "trials: expected a whole number of at least 0, got -1"),
        ("minutes", 0.0, "minutes: expected a number above 0, got 0"),
        ("minutes", float("nan"), "minutes: expected a number above 0, got nan"),
        ("minutes", float("inf"), "minutes: expected a finite number, got inf"),
        ("max_error", -1e-6, "max_error: expected a number of at least 0"),
        ("max_error", float("nan"), "max_error: expected a number of at least 0, got nan"),
        ("seed", -1, "seed: expected a whole number of at least 0, got -1"),
        ("patience", -2, "patience: expected a whole number of at least 0, got -2"),
        ("tuner", "luck", "tuner: expected one of evolutionary, .*got 'luck'"),
        ("task_scheduler", "fair", "task_scheduler: expected one of gradient, .*got 'fair'"),
        ("publish", "never", "publish: expected one of always, faster, got 'never'"),
        ("out", "/dev/null/x", "out /dev/null/x: expected a folder"),
        ("records", "/dev/null/x", "records /dev/null/x: expected a folder"),
        ("work", "/dev/null/x", "RETUNE_CACHE /dev/null/x: expected a folder"),
    ],
)
def test_values(request_: TuneRequest, field: str, value: object, message: str):
    with pytest.raises(InputError, match=message):
        check_request(replace(request_, **{field: value}))


GAIN = ", until less than 1% is expected to be gained"


@pytest.mark.parametrize(
    ("asked", "effort", "trials", "minutes", "least_gain", "bounds"),
    [
        ({}, "full", None, 3.0, 0.01, f"at most 3 min{GAIN}"),
        ({"minutes": 2.0}, "exhaustive", None, 2.0, 0.0, "at most 2 min"),
        ({"trials": 9}, "exhaustive", 9, None, 0.0, "at most 9 candidates"),
        ({"effort": "none"}, "none", 0, None, 0.0, "nothing"),
        ({"effort": "quick"}, "quick", None, 1 / 3, 0.01, f"at most 20 s{GAIN}"),
        (
            {"effort": "quick", "trials": 9},
            "quick",
            9,
            1 / 3,
            0.01,
            f"at most 9 candidates and 20 s{GAIN}",
        ),
        ({"effort": "quick", "minutes": 0.1}, "quick", None, 0.1, 0.01, f"at most 6 s{GAIN}"),
        ({"effort": "full", "minutes": 2.0}, "full", None, 2.0, 0.01, f"at most 2 min{GAIN}"),
    ],
)
def test_effort_minutes_and_trials_say_how_long_is_searched(
    request_: TuneRequest,
    asked: dict[str, Any],
    effort: str,
    trials: int | None,
    minutes: float | None,
    least_gain: float,
    bounds: str,
):
    found = TuneRequest("zoo:mlp", request_.out, **asked)
    assert (found.effort, found.trials, found.minutes) == (effort, trials, minutes)
    assert found.least_gain == least_gain
    assert found.bounds == bounds
    assert replace(found) == found, "resolving is done once"


def test_no_effort_and_trials_contradict_each_other(request_: TuneRequest):
    with pytest.raises(InputError, match="effort none: expected no trials beside it, got 4"):
        check_request(replace(request_, effort="none", trials=4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "half"}, "precision: expected one of float32, tf32, .*got 'half'"),
        ({"max_deviation": 0.1}, "max_deviation 0.1: expected precision mixed .*got float32"),
        ({"precision": "bfloat16", "max_deviation": 0.1}, "max_deviation 0.1: .*got bfloat16"),
        (
            {"precision": "tf32", "quantize": QuantizeSettings(), "calibration": "random"},
            "precision tf32: expected no quantization beside it, got int8",
        ),
        ({"precision": "float16", "device": "vta-sim"}, "expected float32 for device 'vta-sim'"),
    ],
)
def test_precisions(request_: TuneRequest, options: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        check_request(replace(request_, **options))


def test_tf32_is_float32_where_a_device_has_no_instructions_for_it():
    name = WARP32.full_name(WARP32.implementations[0])
    for spec in (None, GENERIC_GPU):
        assert not precision_named("tf32", spec).changes
        assert precision_named("bfloat16", spec).stored is BFLOAT16
    assert precision_named("tf32", replace(GENERIC_GPU, instructions=(name,))).operands is TF32


@pytest.mark.parametrize(
    ("occupy", "message"),
    [
        (lambda r: (r.module / "mine").mkdir(parents=True), "a bundle to replace"),
        (lambda r: r.report.mkdir(parents=True), "report.html: expected the name of a file"),
    ],
)
def test_what_lies_there_is_seen_before_and_not_after(
    request_: TuneRequest, occupy: Callable[[TuneRequest], None], message: str
):
    occupy(request_)
    with pytest.raises(InputError, match=message):
        check_request(request_)


def test_the_default_store_is_the_one_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    seen: list[TuneRequest] = []
    monkeypatch.setattr(api, "run_chain", lambda request, _by: seen.append(request))
    monkeypatch.setenv("RETUNE_RECORDS", str(tmp_path / "elsewhere"))
    api.tune_network("zoo:mlp", tmp_path)
    api.tune_network("zoo:mlp", tmp_path, records=tmp_path / "mine")
    assert [Path(r.records).name for r in seen] == ["elsewhere", "mine"]


def test_nothing_is_measured_on_a_device_that_is_not_here(request_: TuneRequest):
    there = replace(request_, device="profile:mali-g76", trials=0)
    check_request(there)
    check_request(replace(there, device="profile:mali-g76@pocl", trials=5))
    for wrong, message in (
        (replace(there, trials=5), "expected --trials 0"),
        (replace(there, trials=None, minutes=1.0), "expected --trials 0"),
        (replace(there, publish="faster"), "expected --publish always"),
        (replace(there, device="profile:mali"), "profile 'mali' is not known"),
        (replace(there, device="pocl?speed=1"), "expected NAME=NUMBER"),
    ):
        with pytest.raises(InputError, match=message):
            check_request(wrong)
