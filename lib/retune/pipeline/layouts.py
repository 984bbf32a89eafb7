"""Stage layout: the layouts of the network's activations, by the times of kernels and copies."""

from dataclasses import replace
from math import isfinite
from pathlib import Path

from retune.core.layouts import ALL_NHWC, BLOCKED, MEASURED, NHWC, LayoutPlan
from retune.core.stopwatch import Stopwatch
from retune.device.measure.local import LocalRunner
from retune.device.opencl.launch_cost import NO_LAUNCHES, LaunchCost
from retune.device.opening import unraced
from retune.pipeline.layout_manifest import LayoutManifest, LayoutTotal
from retune.pipeline.manifest import TunedTasks
from retune.pipeline.network import open_network
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import TuneEvent
from retune.pipeline.stage import run_once, stage_key
from retune.pipeline.tuning import layout_share, no_layouts, searched_session
from retune.pipeline.watch import stopping, tell
from retune.search.extract import Network
from retune.search.layout.assignment import uniform_layout
from retune.search.layout.search import FoundLayouts, LayoutSearch
from retune.search.session import Session


def stage_layout(request: TuneRequest, tuned: TunedTasks) -> LayoutManifest:
    """The plan of layouts; every measurement behind it is in the store.

    For `auto` kernels and copies are measured and the cheapest plan is solved for. Any other layout
    is that of all activations, and for blocks kernels are measured in these. A watcher of the
    run may end measuring early; the manifest is not stored then. Where nothing can be measured in
    other layouts, the manifest says why.
    """
    later = ("on boards",) if unraced(request.device) else ()  # earlier versions measured nothing
    key = stage_key("layout", tuned.run_id, tuned.trials_done, request.layout, *later)

    def body(_: Path) -> LayoutManifest:
        unmeasured = no_layouts(request)
        if request.layout == BLOCKED:
            return _blocked(request, None if unmeasured or request.trials == 0 else tuned)
        if request.layout != MEASURED or unmeasured:
            return LayoutManifest(unplanned=unmeasured)
        with searched_session(request, tuned) as session:
            return _measured(request, session)

    done = run_once(LayoutManifest, stage="layout", key=key, work=Path(request.work), body=body)
    if request.layout == MEASURED:
        tell(TuneEvent(stage="layout", text=summary(done)))
    return done


def summary(done: LayoutManifest) -> str:
    """The plan in a line."""
    if not done.totals:
        why = f", as {done.unplanned}" if done.unplanned else ""
        return f"all activations stay in NHWC{why}"
    count = len(done.plan.layouts.activations)
    what = f"{count} activation{'s' * (count != 1)} not in NHWC" if count else "all in NHWC"
    first, *others = done.totals
    proven = "proven optimal" if first.optimal else "not proven optimal"
    ratios = ", ".join(f"{first.us / t.us:.3f}x of {t.name}" for t in others if t.us > 0)
    return f"{what}, {first.us / 1e3:.3f} ms ({proven}); {ratios}"


def totals_of(
    found: FoundLayouts, network: Network, launch: LaunchCost = NO_LAUNCHES
) -> tuple[LayoutTotal, ...]:
    """The estimated times of the plan and of its alternatives, by the same costs."""
    problem = found.problem
    other = {
        NHWC: ALL_NHWC,
        BLOCKED: problem.closest(uniform_layout(network, BLOCKED).activations),
        "each kernel's best": problem.each_alone(),
    }
    plan = problem.plan(found.layouts)
    totals = [LayoutTotal.of("plan", plan, launch, optimal=found.solution.optimal)]
    totals += [LayoutTotal.of(name, problem.plan(one), launch) for name, one in other.items()]
    return tuple(total for total in totals if isfinite(total.us))


def _measured(request: TuneRequest, session: Session) -> LayoutManifest:
    network = open_network(request).network
    tell(TuneEvent(stage="layout", text="kernels are measured in other layouts"))
    budget = _Budget(request, session.stopwatch)
    found = LayoutSearch(session, network).run(budget.may_go_on)
    problem, launch = found.problem, _launching(session)
    unknown = [k for k in problem.choices.kernels if problem.nhwc_us(k) is None]
    return LayoutManifest(
        plan=problem.plan(found.layouts),
        totals=totals_of(found, network, launch),
        launch=launch,
        unmeasured=len(unknown),
        trials=found.trials,
        spent_s=budget.spent_s,
        unused=found.unused,
        stopped=stopping(),
    )


def _launching(session: Session) -> LaunchCost:
    """Measured where the runner is one that can: on a device of this machine."""
    runner = session.runner
    if isinstance(runner, LocalRunner) and session.spec.outruns_host:
        return runner.launching(session.settings.options)
    return NO_LAUNCHES


def _blocked(request: TuneRequest, tuned: TunedTasks | None) -> LayoutManifest:
    """All activations in blocks; for a tuned run kernels were measured so."""
    network = open_network(request).network
    done = LayoutManifest(plan=LayoutPlan(layouts=uniform_layout(network, BLOCKED)))
    if tuned is None:
        return done
    with searched_session(request, tuned) as session:
        budget = _Budget(request, session.stopwatch)
        trials = LayoutSearch(session, network).measure(done.plan.layouts, budget.may_go_on)
        return replace(done, trials=trials, spent_s=budget.spent_s, stopped=stopping())


class _Budget:
    """The part of a request's budget that measuring layouts may still use."""

    def __init__(self, request: TuneRequest, stopwatch: Stopwatch) -> None:
        share = layout_share(request)
        self._stopwatch, self._began = stopwatch, stopwatch()
        self._seconds = None if request.minutes is None else 60 * request.minutes * share
        self._trials = None if request.trials is None else round(request.trials * share)

    @property
    def spent_s(self) -> float:
        """Seconds of it that are gone."""
        return self._stopwatch() - self._began

    def may_go_on(self, count: int) -> bool:
        """Whether more may be measured, after so many candidates."""
        if self._seconds is not None:
            return self.spent_s < self._seconds and not stopping()
        return (self._trials is None or count < self._trials) and not stopping()
