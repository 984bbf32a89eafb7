"""What becomes of bundles whose process is lost, with a child that is only pretended."""

import fcntl
import warnings
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from retune.bundle.format import write_bundle
from retune.bundle.plan import NetworkPlan
from retune.bundle.runtime.module import BundleWarning
from retune.bundle.verify import farm_examiner
from retune.bundle.verify.bench import Benchmark, BenchOptions
from retune.bundle.verify.examination import (
    Compare,
    Drop,
    Dropped,
    Failed,
    FindForm,
    Forms,
    ListForms,
    Open,
    Opened,
    Profile,
    Profiled,
    Verify,
)
from retune.bundle.verify.examiner import Comparison, Examiner, Original, Patience, Rival
from retune.bundle.verify.farm_examiner import open_examiner, sharing_processes
from retune.core.errors import DeviceError, InputError, ModelError, RecordError
from retune.core.target import GENERIC_CPU
from retune.device.measure.child import ChildLostError
from retune.device.measure.lease import lock_path
from retune.device.opencl.runtime import LaunchFailed
from tests.support.examiner import VERDICT

NETWORK = Original(onnx=Path("net.onnx"), shapes={"x": (4, 8)})
ORT = Rival(peer="onnxruntime", network=NETWORK)
TIMES = Benchmark(rounds=1, timings=(), ratios=())
ANSWERS: dict[type, object] = {
    Open: Opened(call_s=0.01),
    Verify: VERDICT,
    Compare: TIMES,
    Drop: Dropped(),
    Profile: Profiled(steps=()),
    ListForms: Forms(forms=("persistent", "inline")),
    FindForm: Forms(forms=("inline",)),
}
CRASH = ChildLostError("crash", "the process died of SIGSEGV: at the end")
HANG = ChildLostError("timeout", "no answer within 9 s; killed")
Faults = Callable[[object], object]


class FakeChild:
    """Answers as ANSWERS say, unless `fault` gives another answer, or what is to be raised."""

    spec = GENERIC_CPU

    def __init__(self, fault: Faults = lambda request: None) -> None:
        self.fault = fault
        self.holds: set[Hashable] = set()
        self.seen: list[object] = []
        self.leased: list[bool] = []
        self.deadlines: list[float] = []
        self.closed = 0

    def close(self) -> None:
        self.closed += 1
        self.holds.clear()

    def request(self, request: object, deadline_s: float) -> object:
        self.seen.append(request)
        self.leased.append(is_leased())
        self.deadlines.append(deadline_s)
        answer = self.fault(request) or ANSWERS[type(request)]
        if isinstance(answer, Exception):
            self.close()
            raise answer
        return answer

    def kinds(self) -> list[str]:
        return [type(request).__name__ for request in self.seen]

    def deadline(self, kind: type) -> float:
        pairs = zip(self.seen, self.deadlines, strict=True)
        return next(deadline for request, deadline in pairs if isinstance(request, kind))


def is_leased() -> bool:
    """Whether somebody holds the device."""
    path = lock_path(GENERIC_CPU)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def examiner_of(child: FakeChild, patience: Patience | None = None) -> Examiner:
    return Examiner("fake", patience=patience, make_child=lambda name, **_: child)  # type: ignore[arg-type]


def first(kind: type, *answers: object) -> Faults:
    """The first requests of that kind are answered so."""
    left: Iterator[object] = iter(answers)
    return lambda request: next(left, None) if isinstance(request, kind) else None


ASKING: dict[str, tuple[Callable[[Examiner, Path], object], type]] = {
    "verify": (
        lambda examiner, bundle: examiner.verify(bundle, Comparison(network=NETWORK)),
        Verify,
    ),
    "compare": (lambda examiner, bundle: examiner.compare({"a": bundle, "b": ORT}), Compare),
    "profile": (lambda examiner, bundle: examiner.profile(bundle), Profile),
    "form": (lambda examiner, bundle: examiner.best_form(bundle), FindForm),
}


@pytest.mark.parametrize("asking", ASKING)
@pytest.mark.parametrize("lost", [CRASH, HANG])
@pytest.mark.parametrize("early", [False, True])
def test_one_loss_is_made_up_for_in_a_fresh_process(
    asking: str, lost: ChildLostError, early: bool, folder: Path
) -> None:
    ask, kind = ASKING[asking]
    child = FakeChild(first(Open if early else kind, lost))
    expected = ANSWERS[kind]
    if isinstance(expected, Profiled | Forms):
        expected = expected.steps if isinstance(expected, Profiled) else expected.forms[0]
    assert ask(examiner_of(child), folder) == expected
    assert child.closed == 1
    opened = child.kinds().count("Open")
    assert opened > 1, "the fresh process has to load the bundle, too"


@pytest.mark.parametrize("asking", ASKING)
@pytest.mark.parametrize("lost", [CRASH, HANG])
def test_two_losses_end_it_with_a_sentence(asking: str, lost: ChildLostError, folder: Path) -> None:
    ask, kind = ASKING[asking]
    child = FakeChild(first(kind, CRASH, lost))
    with pytest.raises(DeviceError) as caught:
        ask(examiner_of(child), folder)
    text = str(caught.value)
    how = f"did not answer in {child.deadline(kind):.3g} s" if lost is HANG else "crashed (the pro"
    assert text.startswith(f"{folder}")
    assert f"on fake {how}" in text
    assert text.endswith(", in a second, fresh process too")
    assert child.kinds().count(kind.__name__) == 2


def test_a_peer_that_crashes_is_named(folder: Path) -> None:
    def fault(request: object) -> object:
        return CRASH if isinstance(request, Open) and request.rival else None

    with pytest.raises(DeviceError, match=r"^net.onnx: loading in onnxruntime on fake crashed"):
        examiner_of(FakeChild(fault)).compare({"a": folder, "b": ORT})


@pytest.mark.parametrize("error", [ModelError("bad"), OSError("disk"), LaunchFailed("refused")])
def test_a_failure_is_raised_as_what_it_is_and_not_tried_again(
    error: Exception, folder: Path
) -> None:
    child = FakeChild(first(Verify, Failed.of(error)))  # type: ignore[arg-type]
    examiner = examiner_of(child)
    with pytest.raises(type(error), match=str(error)):
        examiner.verify(folder, Comparison(network=NETWORK))
    assert child.kinds() == ["Open", "Verify"]
    assert child.closed == isinstance(error, LaunchFailed), "its context may be poisoned"
    assert examiner.verify(folder, Comparison(network=NETWORK)) == VERDICT


@pytest.mark.parametrize("asking", ASKING)
def test_the_device_is_leased_while_kernels_run_and_not_in_between(
    asking: str, folder: Path
) -> None:
    ask, _ = ASKING[asking]
    child = FakeChild()
    ask(examiner_of(child), folder)
    assert child.leased == [not isinstance(request, ListForms) for request in child.seen]
    assert not is_leased()


def test_the_lease_is_given_back_when_the_process_is_lost(folder: Path) -> None:
    with pytest.raises(DeviceError):
        examiner_of(FakeChild(first(Open, HANG, HANG))).profile(folder)
    assert not is_leased()


def test_a_bundle_is_loaded_once_for_all_that_is_asked_of_it(folder: Path) -> None:
    child = FakeChild()
    examiner = examiner_of(child)
    examiner.compare({"a": folder, "b": ORT})
    examiner.profile(folder)
    examiner.compare({"a": folder, "b": ORT}, baseline="b")
    assert child.kinds() == ["Open", "Open", "Compare", "Profile", "Compare"]


def test_a_profile_is_of_the_sizes_that_are_asked_for(folder: Path) -> None:
    seen: list[object] = []
    examiner_of(FakeChild(seen.append)).profile(folder, sizes={"n": 3})
    asked = [request for request in seen if isinstance(request, Open | Profile)]
    assert [request.sizes for request in asked] == [{"n": 3}, {"n": 3}]


def test_a_bundle_is_loaded_again_after_its_forms_were_timed(folder: Path) -> None:
    """The process has let go of it for them; loading takes longer than a comparison may."""
    child = FakeChild()
    examiner = examiner_of(child)
    examiner.best_form(folder)
    examiner.compare({"a": folder})
    assert child.kinds() == ["ListForms", "Open", "FindForm", "Open", "Compare"]


def test_a_single_form_is_not_measured(folder: Path) -> None:
    child = FakeChild(first(ListForms, Forms(forms=("queued",))))
    assert examiner_of(child).best_form(folder) == "queued"
    assert child.kinds() == ["ListForms"]


def test_forms_of_a_network_with_long_calls_are_not_loaded(folder: Path) -> None:
    answers = {ListForms: Forms(forms=("persistent", "inline")), Open: Opened(call_s=0.1)}
    child = FakeChild(lambda request: answers.get(type(request)))
    assert examiner_of(child).best_form(folder) == "persistent"
    assert child.kinds() == ["ListForms", "Open"]


def test_deadlines_follow_from_what_is_known(folder: Path, plan: NetworkPlan) -> None:
    patience = Patience(open_s=100, kernel_s=7, answer_s=30, slower=10, gflops=1e-9)
    flops = sum(launch.flops for launch in plan.launches)
    child = FakeChild(first(Open, Opened(call_s=0.5)))
    examiner_of(child, patience).verify(folder, Comparison(network=NETWORK, samples=4))
    assert child.deadlines[0] == pytest.approx(100 + 7 * len(plan.kernels) + 3 * flops)
    assert child.deadlines[1] == pytest.approx(100 + 30 + 4 * 2 * (10 * 0.5 + flops))


def test_slower_calls_and_larger_budgets_have_longer_deadlines(folder: Path) -> None:
    def deadline(call_s: float, budget_s: float) -> float:
        child = FakeChild(first(Open, Opened(call_s=call_s)))
        options = BenchOptions(budget_s=budget_s)
        examiner_of(child).compare({"a": folder}, options=options)
        return child.deadline(Compare)

    assert deadline(0.01, 20) > 20
    assert deadline(1.0, 20) > deadline(0.01, 20) + 5 * 20
    assert deadline(0.01, 300) > 300


def test_there_has_to_be_a_bundle() -> None:
    with pytest.raises(InputError, match="expected a bundle among the entrants; got none"):
        examiner_of(FakeChild()).compare({"b": ORT})


def test_a_damaged_bundle_never_reaches_the_process(folder: Path) -> None:
    (folder / "kernels.cl").write_text("changed")
    child = FakeChild()
    with pytest.raises(RecordError, match=r"kernels\.cl"):
        examiner_of(child).verify(folder, Comparison(network=NETWORK))
    assert child.seen == []


def test_a_bundle_of_another_device_is_warned_of(plan: NetworkPlan, tmp_path: Path) -> None:
    foreign = replace(plan, device=replace(GENERIC_CPU, driver="another"))
    bundle = write_bundle(foreign, tmp_path / "foreign")
    with pytest.warns(BundleWarning, match="was tuned for"):
        examiner_of(FakeChild()).verify(bundle, Comparison(network=NETWORK))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        examiner_of(FakeChild()).best_form(bundle)


def test_the_calibration_kernel_takes_part_under_its_name(folder: Path) -> None:
    child = FakeChild()
    examiner_of(child).compare({"a": folder}, calibration="kernel")
    (request,) = [each for each in child.seen if isinstance(each, Compare)]
    assert request.calibration == "kernel"


class Living(FakeChild):
    """A process that is there until it is closed."""

    pid: int | None = 1

    def close(self) -> None:
        super().close()
        self.pid = None


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Living]:
    """Processes of the examiners that are opened."""
    processes: list[Living] = []

    def make(device: str) -> Examiner:
        processes.append(Living())
        return examiner_of(processes[-1])

    monkeypatch.setattr(farm_examiner, "Examiner", make)
    return processes


def test_examiners_after_each_other_share_a_process_that_holds_nothing(
    folder: Path, made: list[Living]
) -> None:
    with sharing_processes():
        for _ in range(2):
            with open_examiner("fake") as examiner:
                examiner.profile(folder)
        assert not made[0].closed
    (child,) = made
    assert child.kinds() == ["Open", "Profile", "Drop"] * 2, "the bundle is loaded anew"
    assert child.closed == 1


def test_a_process_that_was_lost_or_failed_is_not_handed_on(
    folder: Path, made: list[Living]
) -> None:
    with sharing_processes():
        with pytest.raises(KeyboardInterrupt), open_examiner("fake"):
            raise KeyboardInterrupt
        with open_examiner("fake") as examiner:
            examiner.close()
        with open_examiner("fake") as examiner:
            made[-1].fault = first(Drop, CRASH)
        with open_examiner("fake"), open_examiner("fake"):
            pass
    assert len(made) == 5 and all(child.closed for child in made)


def test_outside_of_a_run_each_examiner_has_its_own_process(made: list[Living]) -> None:
    for _ in range(2):
        with open_examiner("fake"):
            pass
    assert [child.closed for child in made] == [1, 1]
