"""A bundle that is slower than its peer, or mostly on the host, is reported with its cause."""

from dataclasses import replace
from pathlib import Path

import pytest

from retune.core.errors import InputError
from retune.core.results import KernelTime, Latency
from retune.device.measure.contention import NOTICEABLE
from retune.pipeline import chain
from retune.pipeline.calling import InProcess
from retune.pipeline.manifest import BenchManifest
from retune.pipeline.request import TuneRequest, check_request
from retune.pipeline.results import SlowerThanPeer
from retune.pipeline.rows import result_data
from retune.pipeline.slowness import busy_sentence, required_speed, slow_sentence
from tests.flows.fakes import FakeStages


def step(label: str, us: float, *, host: str = "", roofline: float | None = None) -> KernelTime:
    return KernelTime(
        label=label, kernel=host or f"{label}_0", us=us, flops=1, roofline=roofline, host=bool(host)
    )


def bench(*profile: KernelTime, **medians: float) -> BenchManifest:
    rows = (
        Latency(name=name, median_us=us, p25_us=us, p75_us=us, runs=9)
        for name, us in medians.items()
    )
    return BenchManifest(rows=tuple(rows), profile=profile)


CONV = (step("conv2d_3", 30, roofline=0.02), step("conv2d_3", 30, roofline=0.06), step("relu", 9))
NMS = step("host_7", 62, host="NonMaxSuppression")


@pytest.mark.parametrize(
    ("profile", "medians", "sentence"),
    [
        (CONV, {"tuned": 10, "onnxruntime": 20}, ""),
        (CONV, {"tuned": 10.1, "onnxruntime": 10}, ""),
        (CONV, {"tuned": 10}, ""),
        (
            CONV,
            {"untuned": 99, "tuned": 10, "onnxruntime": 7},
            "slower than onnxruntime (0.7x): 87% of the time is spent in task conv2d_3, which "
            "reached 4% of the peak",
        ),
        (
            (*CONV[1:], NMS),
            {"tuned": 20, "onnxruntime": 10, "openvino": 5},
            "slower than onnxruntime (0.5x) and openvino (0.25x): 61% of the time is spent in host "
            "step NonMaxSuppression",
        ),
        (
            (*CONV[1:], NMS),
            {"tuned": 10, "onnxruntime": 20},
            "61% of the time is on the host: 61% of the time is spent in host step "
            "NonMaxSuppression",
        ),
        ((), {"tuned": 20, "onnxruntime": 10}, "slower than onnxruntime (0.5x)"),
        ((replace(NMS, kernel="VTA (simulated)"),), {"tuned": 10}, ""),
        ((step("add_1", 5),), {"tuned": 2, "onnxruntime": 1},
         "slower than onnxruntime (0.5x): 100% of the time is spent in task add_1"),
    ],
)  # fmt: skip
def test_what_is_slow_is_one_sentence(
    profile: tuple[KernelTime, ...], medians: dict[str, float], sentence: str
):
    assert slow_sentence(bench(*profile, **medians)) == sentence


def test_a_required_speed_is_that_of_a_peer_that_was_timed():
    slower = bench(*CONV, tuned=10, onnxruntime=7, openvino=30)
    assert required_speed(slower, None) == required_speed(slower, "openvino") == ""
    assert "as fast as onnxruntime, got one that is slower than" in required_speed(
        slower, "onnxruntime"
    )
    assert "got none" in required_speed(bench(tuned=10), "onnxruntime")


@pytest.mark.parametrize("slow", [False, True])
def test_a_run_that_has_to_be_faster_fails_after_publishing(
    slow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Stages(FakeStages):
        def stage_bench(self, request, network, untuned, tuned, alone):  # type: ignore[no-untyped-def]
            return bench(*CONV, untuned=9, tuned=8 if slow else 3, onnxruntime=4)

    Stages().install(monkeypatch)
    monkeypatch.setattr(chain, "check_request", lambda _: None)
    folders = {name: str(tmp_path / name) for name in ("out", "records", "work")}
    request = TuneRequest("zoo:fake", fail_if_slower_than="onnxruntime", **folders)
    if not slow:
        assert chain.run_chain(request, InProcess()).slow == ""
        return
    with pytest.raises(SlowerThanPeer, match=r"0.5x.*the bundle is published") as caught:
        chain.run_chain(request, InProcess())
    assert caught.value.exit_code == 1
    result = caught.value.result
    assert Path(result.module).is_dir() and result.slow.startswith("slower than onnxruntime")
    assert result_data(result)["slow"] == result.slow


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"fail_if_slower_than": "openvino"}, "openvino: expected a peer that is installed"),
        ({"device": "profile:mali-g76", "trials": 0, "fail_if_slower_than": "onnxruntime"},
         "expected a device that peers run on, got profile:mali-g76"),
        ({"fail_if_slower_than": "tvm"}, "fail_if_slower_than: expected one of onnxruntime"),
    ],
)  # fmt: skip
def test_a_peer_that_cannot_take_part_is_refused(
    fields: dict[str, object], message: str, tmp_path: Path
):
    folders = {name: str(tmp_path / name) for name in ("out", "records", "work")}
    with pytest.raises(InputError, match=message):
        check_request(TuneRequest("zoo:mlp", **folders, **fields))  # type: ignore[arg-type]


def test_a_busy_processor_is_said():
    assert busy_sentence(0.0) == busy_sentence(NOTICEABLE) == ""
    assert "waited for cores for 83% of the time that was measured" in busy_sentence(0.83)
