"""The bundle holds the records that were selected, whatever the store thinks of them.

What was verified and measured holds for the device, oracle and peers that it was found with.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest

from retune.bundle.build import build_plan
from retune.bundle.format import read_bundle
from retune.bundle.plan import Form
from retune.bundle.runtime.module import LaunchProfile
from retune.bundle.verify.bench import Benchmark, BenchOptions, Timing
from retune.bundle.verify.compare import Verification
from retune.bundle.verify.examiner import Comparison, Entrant, Rival, Verdict
from retune.core.errors import RecordError
from retune.core.target import GENERIC_CPU, DeviceSpec
from retune.pipeline import delivery, selection, validation
from retune.pipeline.manifest import (
    BestRecord,
    CompileManifest,
    Constraints,
    ImportManifest,
    Selection,
)
from retune.pipeline.network import open_network, stage_extract, stage_import
from retune.pipeline.request import TuneRequest
from retune.records.ranking import best, top
from retune.records.schema import TuningRecord
from retune.records.store import RecordStore
from retune.search.history import candidate_of
from tests.support.device_networks import write
from tests.support.search_fakes import HERE, measured
from tests.support.searched import searched_request


@pytest.fixture
def request_(
    tmp_path: Path, examined: type["FakeExaminer"], monkeypatch: pytest.MonkeyPatch
) -> TuneRequest:
    """A network of which some trials are recorded."""
    become(monkeypatch, GENERIC_CPU)
    return searched_request("bottleneck", tmp_path, measured, trials=80)


def slowest(request: TuneRequest) -> dict[str, TuningRecord]:
    """The last of each task in the store's order."""
    store, network = RecordStore(request.records), open_network(request).network
    tops = {key: top(store, key, HERE, 1000) for key, task in network.tasks.items() if task.tunable}
    assert any(len(records) > 10 for records in tops.values())
    return {key: records[-1] for key, records in tops.items()}


def chosen(records: dict[str, TuningRecord]) -> tuple[BestRecord, ...]:
    return tuple(
        BestRecord(task_key=key, record_id=r.record_id, time_us=r.measurement.median_us or 0.0)
        for key, r in records.items()
    )


def test_a_bundle_has_the_selected_schedule_of_each_task(request_: TuneRequest):
    network, records = stage_import(request_), slowest(request_)
    tasks = stage_extract(request_, network)
    chosen_ = Selection(target=GENERIC_CPU.fingerprint, best=chosen(records))
    made = delivery.stage_compile(request_, network, tasks, chosen_, "tuned")
    assert (made.from_records, made.from_defaults) == (len(records), 0)
    imported = open_network(request_).network
    picks = {
        key: found
        for key, record in records.items()
        if (found := candidate_of(record, imported.tasks[key].space(GENERIC_CPU)))
    }
    plan = build_plan(imported, picks, GENERIC_CPU, model_key="", notes={})
    assert read_bundle(Path(made.folder) / made.module).kernels == plan.kernels


def test_a_selected_record_that_is_gone_is_an_error(request_: TuneRequest):
    network, records = stage_import(request_), slowest(request_)
    tasks = stage_extract(request_, network)
    lost = {key: replace(record, record_id=f"no-{key}") for key, record in records.items()}
    chosen_ = Selection(target=GENERIC_CPU.fingerprint, best=chosen(lost))
    with pytest.raises(RecordError, match=r"the chosen record no-.* is gone"):
        delivery.stage_compile(request_, network, tasks, chosen_, "tuned")


def test_a_winner_is_selected_unless_its_record_is_gone(request_: TuneRequest):
    network, records = stage_import(request_), slowest(request_)
    tasks = stage_extract(request_, network)
    (first, *_), winners = records, chosen(records)
    given = tuple(
        replace(winner, record_id="no") if winner.task_key == first else winner
        for winner in winners
    )
    selected = selection.stage_choose(request_, tasks, Constraints(winners=given)).best
    ids = {entry.task_key: entry.record_id for entry in selected}
    found = best(RecordStore(request_.records), first, HERE)
    assert found is not None and ids.pop(first) == found.record_id
    assert ids == {key: record.record_id for key, record in records.items() if key != first}


class FakeExaminer:
    """Finds everything right, and each entrant slower than the one before it."""

    form: Form = "persistent"
    where = ""
    asked: list[str] = []  # noqa: RUF012 - of a class that each test has for itself

    def __init__(self, device: str) -> None:
        assert device == "pocl"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.asked.append("closed")

    def best_form(self, bundle: Path) -> Form:
        assert read_bundle(bundle).form == "persistent"
        self.asked.append("form")
        return self.form

    def verify(self, bundle: Path, comparison: Comparison) -> Verdict:
        assert not comparison.given and not comparison.sizes
        network = comparison.network
        assert read_bundle(bundle).inputs == tuple(network.shapes)
        assert network.onnx.is_file(), f"the model is not at {network.onnx}"
        self.asked.append("verify")
        found = Verification(
            samples=comparison.samples or 0, max_abs=float("inf"), max_rel_range=0.5, outputs=(),
            tolerance=1e-4, used=float("inf"), by_parts=True,
        )  # fmt: skip
        return Verdict(oracle="oracle", version="7", found=found)

    def compare(
        self, entrants: Mapping[str, Entrant], *, options: BenchOptions, sizes: Mapping[str, int]
    ) -> Benchmark:
        assert not sizes
        self.asked.append(f"compare {' '.join(entrants)}")
        rival = entrants["onnxruntime"]
        assert isinstance(rival, Rival) and rival.network.onnx.is_file()
        timings = tuple(
            Timing(
                name=name, times_s=(1.0, 2.0), calls_per_sample=1, median_s=place + 2,
                first_quartile_s=place + 1, third_quartile_s=place + 3,
            )
            for place, name in enumerate(entrants)
        )  # fmt: skip
        return Benchmark(rounds=2, timings=timings, ratios=())

    def profile(self, bundle: Path) -> tuple[LaunchProfile, ...]:
        self.asked.append(f"profile {read_bundle(bundle).notes['variant']}")
        row = LaunchProfile(
            label="group", kernel="k", median_s=2e-6, share=1.0, flops=3, bytes=4, gflops=1.0,
            gbytes_per_s=1.0, roofline=0.5,
        )  # fmt: skip
        return (row,)


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> type[FakeExaminer]:
    class Own(FakeExaminer):
        asked: list[str] = []  # noqa: RUF012

    monkeypatch.setattr(delivery, "open_examiner", Own)
    return Own


class Delivered:
    """A network of default schedules, compiled in both variants."""

    def __init__(self, folder: Path) -> None:
        folders = {name: str(folder / name) for name in ("out", "records", "work")}
        self.request = TuneRequest(
            model=str(write("bottleneck", folder)),
            **folders,  # folders are given by name
        )
        self.network = stage_import(self.request)
        self.tasks = stage_extract(self.request, self.network)
        self.untuned, self.tuned = self.compiled("untuned"), self.compiled("tuned")

    def compiled(self, variant: str) -> CompileManifest:
        chosen = Selection(target=GENERIC_CPU.fingerprint)
        return delivery.stage_compile(self.request, self.network, self.tasks, chosen, variant)  # type: ignore[arg-type]

    def keys(self) -> dict[str, str]:
        """Of what is made anew where the device, the oracle or a peer is another one."""
        chosen, request = Selection(target=GENERIC_CPU.fingerprint), self.request
        given = Constraints()
        network: ImportManifest = self.network
        return {
            "compile": delivery.stage_compile.key(request, network, self.tasks, chosen, "tuned"),
            "verify": delivery.stage_verify.key(request, network, self.tuned),
            "bench": delivery.stage_bench.key(request, network, self.untuned, self.tuned),
            "validate": validation.stage_validate.key(request, network, self.tasks, chosen, given),
            "compare": validation.stage_compare.key(request, network, self.tasks, chosen, given),
        }


@pytest.fixture
def delivered(
    tmp_path: Path, examined: type[FakeExaminer], monkeypatch: pytest.MonkeyPatch
) -> Delivered:
    become(monkeypatch, GENERIC_CPU)
    return Delivered(tmp_path)


def become(monkeypatch: pytest.MonkeyPatch, spec: DeviceSpec) -> None:
    """The device is this one from now on."""
    for module in (delivery, selection):
        monkeypatch.setattr(module, "spec_of", lambda name: spec)


@pytest.mark.parametrize("form", ["persistent", "inline"])
def test_a_bundle_has_the_form_that_was_the_fastest(
    form: Form, tmp_path: Path, examined: type[FakeExaminer], monkeypatch: pytest.MonkeyPatch
):
    become(monkeypatch, GENERIC_CPU)
    examined.form = form
    made = Delivered(tmp_path).tuned
    assert made.form == read_bundle(made.file(made.module)).form == form
    assert examined.asked == ["form", "closed"] * 2


def test_bundles_that_differ_in_their_forms_alone_are_timed_as_one(
    delivered: Delivered, examined: type[FakeExaminer]
):
    """Whatever the load was while the forms were chosen, schedules did not make one faster."""
    examined.form = "inline" if delivered.tuned.form != "inline" else "queued"
    chosen = replace(
        Selection(target=GENERIC_CPU.fingerprint), limits=((delivered.tasks.tasks[0].key, 0.1),)
    )
    made = delivery.stage_compile(
        delivered.request, delivered.network, delivered.tasks, chosen, "untuned"
    )
    assert made.form != delivered.tuned.form and made.key != delivered.tuned.key
    assert made.has_steps_of(delivered.tuned)
    bench = delivery.stage_bench(delivered.request, delivered.network, made, delivered.tuned)
    assert [row.name for row in bench.rows] == ["tuned", "onnxruntime"]


def test_a_verdict_and_times_become_manifests(delivered: Delivered, examined: type[FakeExaminer]):
    examined.asked.clear()
    request, network = delivered.request, delivered.network
    verified = delivery.stage_verify(request, network, delivered.tuned)
    assert (verified.oracle, verified.samples, verified.max_rel) == ("oracle 7", 2, 0.5)
    assert (verified.passed, verified.by_parts) == (False, True)
    assert verified.max_abs == pytest.approx(1.797e308, rel=1e-3), "JSON has no infinity"
    other = replace(delivered.untuned, steps_key="other")
    bench = delivery.stage_bench(request, network, other, delivered.tuned)
    rows = [(row.name, row.median_us, row.p25_us, row.p75_us, row.runs) for row in bench.rows]
    assert rows == [
        ("untuned", 2e6, 1e6, 3e6, 2),
        ("tuned", 3e6, 2e6, 4e6, 2),
        ("onnxruntime", 4e6, 3e6, 5e6, 2),
    ]
    assert [(step.label, step.us, step.roofline) for step in bench.profile] == [("group", 2.0, 0.5)]
    compared = "compare untuned tuned onnxruntime"
    assert examined.asked == ["verify", "closed", compared, "profile tuned", "closed"]


def test_a_bundle_of_default_schedules_alone_is_timed_once(
    delivered: Delivered, examined: type[FakeExaminer]
):
    request, network = delivered.request, delivered.network
    examined.asked.clear()
    plain = replace(delivered.tuned, variant="untuned")
    bench = delivery.stage_bench(request, network, plain, delivered.tuned)
    assert [row.name for row in bench.rows] == ["tuned", "onnxruntime"]
    assert examined.asked[0] == "compare tuned onnxruntime"


def test_what_was_found_is_found_again(delivered: Delivered, examined: type[FakeExaminer]):
    request, network = delivered.request, delivered.network
    before = delivered.keys()
    first = delivery.stage_verify(request, network, delivered.tuned)
    examined.asked.clear()
    assert delivery.stage_verify(request, network, delivered.tuned) == first
    assert delivered.compiled("tuned") == delivered.tuned
    assert examined.asked == [] and delivered.keys() == before


def test_a_model_that_was_moved_is_read_where_it_is_now(
    delivered: Delivered, examined: type[FakeExaminer]
):
    """As after a run that ended before its bundle was verified."""
    before = Path(delivered.request.model)
    request = replace(delivered.request, model=str(before.rename(before.with_name("moved.onnx"))))
    network = stage_import(request)
    assert network == delivered.network, "it is the same model"
    examined.asked.clear()
    delivery.stage_verify(request, network, delivered.tuned)
    delivery.stage_bench(request, network, delivered.untuned, delivered.tuned)
    assert [asked.split()[0] for asked in examined.asked if asked != "closed"] == [
        "verify", "compare", "profile",
    ]  # fmt: skip


def test_outputs_of_stages_do_not_say_where_the_model_was(delivered: Delivered):
    """Their keys follow from its content, so the next request may have it elsewhere."""
    delivery.stage_verify(delivered.request, delivered.network, delivered.tuned)
    delivery.stage_bench(delivered.request, delivered.network, delivered.untuned, delivered.tuned)
    files = [path for path in Path(delivered.request.work).rglob("*") if path.is_file()]
    assert {path.parent.parent.name for path in files} >= {"import", "verify", "bench"}
    model = Path(delivered.request.model)
    named = [
        path
        for path in files
        if any(
            word.encode() in path.read_bytes() for word in (str(model.parent), f'"{model.stem}"')
        )
    ]
    assert named == []


@pytest.mark.parametrize(
    "other",
    [
        replace(GENERIC_CPU, driver="newer"),
        replace(GENERIC_CPU, opencl="OpenCL 3.0 for another processor"),
        replace(GENERIC_CPU, host="another processor"),
        replace(GENERIC_CPU, affinity="1 of 2 cores, pinned"),
        replace(GENERIC_CPU, compute_units=1),
    ],
    ids=["driver", "compiler", "processor", "cores", "units"],
)
def test_on_another_device_all_is_made_anew(
    other: DeviceSpec,
    delivered: Delivered,
    examined: type[FakeExaminer],
    monkeypatch: pytest.MonkeyPatch,
):
    before = delivered.keys()
    delivery.stage_verify(delivered.request, delivered.network, delivered.tuned)
    become(monkeypatch, other)
    after = delivered.keys()
    assert not {name for name in before if before[name] == after[name]}
    examined.asked.clear()
    again = delivered.compiled("tuned")
    delivery.stage_verify(delivered.request, delivered.network, delivered.tuned)
    assert again.target == other.fingerprint and again.key != delivered.tuned.key
    assert examined.asked == ["form", "closed", "verify", "closed"]


def test_a_selection_is_of_the_device_that_it_is_made_on(
    delivered: Delivered, monkeypatch: pytest.MonkeyPatch
):
    def target() -> str:
        found = selection.stage_choose(delivered.request, delivered.tasks)
        return found.target

    before = target()
    become(monkeypatch, replace(GENERIC_CPU, driver="newer"))
    assert target() != before


@pytest.mark.parametrize(
    ("patched", "value", "changed"),
    [
        ("oracle_version", lambda: "onnxruntime 99", {"verify", "validate", "compare"}),
        ("peer_versions", lambda names: dict.fromkeys(names, "99"), {"bench"}),
        ("peer_versions", lambda names: {}, {"bench"}),
    ],
)
def test_another_oracle_or_peer_is_asked_again(
    patched: str,
    value: Callable[..., object],
    changed: set[str],
    delivered: Delivered,
    monkeypatch: pytest.MonkeyPatch,
):
    before = delivered.keys()
    for module in (delivery, validation):
        if hasattr(module, patched):
            monkeypatch.setattr(module, patched, value)
    after = delivered.keys()
    assert {name for name in before if before[name] != after[name]} == changed
