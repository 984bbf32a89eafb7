"""Which forms a device allows, and that the one with the least median is taken."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from retune.bundle.plan import Form, NetworkPlan
from retune.bundle.runtime import forms
from retune.bundle.runtime.executor import forms_here, settle
from retune.bundle.runtime.forms import best_form
from retune.bundle.verify.bench import Benchmark, Contender, Timing
from retune.codegen.network.resident import WAYS
from retune.core.target import GENERIC_CPU, GENERIC_GPU, DeviceSpec


@dataclass
class FakeDevice:
    """What is asked of a device before anything is built."""

    spec: DeviceSpec = GENERIC_CPU
    has_atomics: bool = True
    in_caller: "FakeDevice | None" = None


class FakeModule:
    """A loaded bundle; none of these tests runs one."""

    seconds: float = 0.0

    def __init__(self, plan: NetworkPlan, device: object) -> None:
        self.form: Form = plan.form

    def benchmark(self) -> list[float]:
        return [self.seconds]

    def random_inputs(self) -> dict[str, object]:
        return {}

    def run(self, inputs: object) -> Form:
        return self.form


@dataclass
class FakeClock:
    """Stands for `compare_times`: states times, and keeps which forms really ran."""

    medians: Mapping[str, float]
    asked: list[str] = field(default_factory=list)

    def __call__(self, contenders: Mapping[str, Contender]) -> Benchmark:
        self.asked = [str(run()) for run in contenders.values()]
        timings = tuple(_timing(name, self.medians[name]) for name in contenders)
        return Benchmark(rounds=1, timings=timings, ratios=())


@pytest.fixture
def single_item(plan: NetworkPlan) -> NetworkPlan:
    """The plan with kernels of single-work-item groups."""
    return replace(
        plan, kernels=tuple(replace(kernel, single_item=True) for kernel in plan.kernels)
    )


@pytest.fixture
def loading(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Modules are stand-ins whose calls take so many seconds."""

    def use(seconds: float) -> None:
        monkeypatch.setattr(FakeModule, "seconds", seconds)
        monkeypatch.setattr(forms, "Module", FakeModule)

    return use


def test_a_processor_with_both_devices_allows_both_forms(single_item: NetworkPlan) -> None:
    device = FakeDevice(in_caller=FakeDevice())
    assert _forms(single_item, device) == ("persistent", "inline")
    assert _forms(single_item, FakeDevice()) == ("persistent",)


def test_kernels_of_cooperating_items_go_through_a_queue(plan: NetworkPlan) -> None:
    assert _forms(plan, FakeDevice(in_caller=FakeDevice())) == ("queued",)


def test_a_form_that_the_device_lacks_becomes_the_usual_one(single_item: NetworkPlan) -> None:
    device = FakeDevice()
    wished = replace(single_item, form="inline")
    assert settle(wished, device) == ("persistent", device)  # type: ignore[arg-type]
    both = FakeDevice(in_caller=FakeDevice())
    assert settle(wished, both) == ("inline", both.in_caller)  # type: ignore[arg-type]


@pytest.mark.parametrize("best", ["persistent", "inline"])
def test_the_form_of_the_least_median_is_taken(
    single_item: NetworkPlan, loading: Callable[[float], None], best: str
) -> None:
    loading(1e-5)
    clock = FakeClock({"persistent": 2.0, "inline": 2.0, best: 1.0})
    found = best_form(single_item, FakeDevice(in_caller=FakeDevice()), clock)  # type: ignore[arg-type]
    assert found == replace(single_item, form=best)
    assert clock.asked == ["persistent", "inline"]


def test_long_networks_are_not_compared(
    single_item: NetworkPlan, loading: Callable[[float], None]
) -> None:
    loading(1.01 * forms.LONGEST_S)
    clock = FakeClock({})
    device = FakeDevice(in_caller=FakeDevice())
    assert best_form(single_item, device, clock).form == "persistent"  # type: ignore[arg-type]
    assert clock.asked == []


@pytest.mark.parametrize("best", ["queued", "persistent"])
def test_networks_of_any_length_are_compared_where_groups_stay(
    plan: NetworkPlan, loading: Callable[[float], None], best: str
) -> None:
    """There it is launches that cost, not waking: the longest networks have the most."""
    loading(100 * forms.LONGEST_S)
    device = FakeDevice(spec=replace(GENERIC_GPU, instructions=(next(iter(WAYS)),)))
    kernels = tuple(replace(kernel, arena_bytes=64) for kernel in plan.kernels)
    called = replace(plan, kernels=kernels, form="queued")
    assert _forms(called, device) == ("queued", "persistent")
    clock = FakeClock({"persistent": 2.0, "queued": 2.0, best: 1.0})
    assert best_form(called, device, clock).form == best  # type: ignore[arg-type]


def test_a_single_form_is_not_measured(plan: NetworkPlan, loading: Callable[[float], None]) -> None:
    loading(0.0)
    clock = FakeClock({})
    assert best_form(plan, FakeDevice(), clock).form == "queued"  # type: ignore[arg-type]
    assert clock.asked == []


def _forms(plan: NetworkPlan, device: FakeDevice) -> tuple[Form, ...]:
    return forms_here(plan, device)  # type: ignore[arg-type]


def _timing(name: str, seconds: float) -> Timing:
    return Timing(
        name=name,
        times_s=(seconds,),
        calls_per_sample=1,
        median_s=seconds,
        first_quartile_s=seconds,
        third_quartile_s=seconds,
    )
