"""Stage layout: where the images of the network lie, by what kernels and copies were measured to
take."""

from collections.abc import Callable
from math import isfinite
from pathlib import Path
from time import perf_counter

from retune.core.layouts import BLOCKS, MEASURED
from retune.device.measure.local import LocalRunner
from retune.device.opencl.launch_cost import NO_LAUNCHES, LaunchCost
from retune.device.opening import is_absent, unraced
from retune.pipeline.layout_manifest import LayoutManifest
from retune.pipeline.layout_plan import LaidImage, LaidKernel, LayoutPlan, LayoutTotal
from retune.pipeline.manifest import TunedTasks
from retune.pipeline.network import open_network
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import TuneEvent
from retune.pipeline.stage import run_once, stage_key
from retune.pipeline.tuning import layout_share, searched_session
from retune.pipeline.watch import stopping, tell
from retune.search.extract import Network
from retune.search.layout.laying import Kept, LayoutChoice, uniform
from retune.search.layout.layouts import IN_ROWS
from retune.search.layout.problem import LayoutProblem
from retune.search.layout.search import FoundLayouts, LayoutSearch
from retune.search.session import Session


def stage_layout(request: TuneRequest, tuned: TunedTasks) -> LayoutManifest:
    """The plan of layouts; every measurement behind it is in the store.

    For `auto` kernels and copies are measured and the cheapest plan is solved for; any other layout
    is that of all images, and for blocks kernels are measured with these. When those who watch wish
    it so, measuring ends early, and the manifest is not stored. On simulated devices and boards of
    a farm nothing is measured.
    """
    key = stage_key("layout", tuned.run_id, tuned.trials_done, request.layout)

    def body(_: Path) -> LayoutManifest:
        unmeasured = unraced(request.device) or is_absent(request.device)
        if request.layout == BLOCKS:
            return _in_blocks(request, None if unmeasured or request.trials == 0 else tuned)
        if request.layout != MEASURED or unmeasured:
            return LayoutManifest()
        with searched_session(request, tuned) as session:
            return _measured(request, session)

    done = run_once(LayoutManifest, stage="layout", key=key, work=Path(request.work), body=body)
    if request.layout == MEASURED:
        tell(TuneEvent(stage="layout", text=summary(done)))
    return done


def summary(done: LayoutManifest) -> str:
    """The plan in a line."""
    if not done.totals:
        return "all images stay in rows"
    count = len(done.plan.images)
    what = f"{count} image{'s' * (count != 1)} not in rows" if count else "all images in rows"
    first, *others = done.totals
    proven = "proven optimal" if first.optimal else "not proven optimal"
    ratios = ", ".join(f"{first.us / t.us:.3f}x of {t.name}" for t in others if t.us > 0)
    return f"{what}, {first.us / 1e3:.3f} ms ({proven}); {ratios}"


def plan_of(choice: LayoutChoice, problem: LayoutProblem | None = None) -> LayoutPlan:
    """The choice as data, with what it takes where that is known."""
    copies = problem.copies_us(choice) if problem else {}
    images = tuple(
        LaidImage(image=image, made=kept.made, copies=kept.copies, us=copies.get(image, 0.0))
        for image, kept in sorted(choice.kept.items())
    )
    if problem is None:
        kernels = tuple(
            LaidKernel(group=label, read=ends.read, made=ends.made)
            for label, ends in sorted(choice.ends.items())
        )
        return LayoutPlan(images=images, kernels=kernels)
    now, rows = problem.kernel_us(choice), problem.kernel_us(LayoutChoice(kept={}, ends={}))
    kernels = tuple(
        LaidKernel(
            group=place.label,
            task_key=place.task_key,
            read=choice.ends.get(place.label, IN_ROWS).read,
            made=choice.ends.get(place.label, IN_ROWS).made,
            us=now[place.label],
            rows_us=rows[place.label],
        )
        for place in problem.kernels
    )
    moves = {placed.group.name for joint in problem.joints.values() for placed in joint.groups}
    kernels += tuple(
        LaidKernel(group=label, read=ends.read, made=ends.made)
        for label, ends in sorted(choice.ends.items())
        if label in moves
    )
    return LayoutPlan(images=images, kernels=kernels)


def totals_of(
    found: FoundLayouts, network: Network, launch: LaunchCost = NO_LAUNCHES
) -> tuple[LayoutTotal, ...]:
    """What the plan takes, and what else one might do, by the same costs, with these launches."""
    problem = found.problem
    plan = problem.choice(found.solution.choice)
    blocks = {value: Kept(kept.made) for value, kept in uniform(network, BLOCKS).kept.items()}
    other = {
        "rows": problem.choice(problem.numbers({})),
        BLOCKS: problem.choice(problem.numbers(blocks)),
        "each kernel's best": problem.each_alone(),
    }
    totals = (
        _total("plan", problem, plan, launch, optimal=found.solution.optimal),
        *(_total(name, problem, choice, launch) for name, choice in other.items()),
    )
    return tuple(total for total in totals if isfinite(total.us))


def _total(
    name: str,
    problem: LayoutProblem,
    choice: LayoutChoice,
    launch: LaunchCost,
    *,
    optimal: bool | None = None,
) -> LayoutTotal:
    copies = problem.copies_us(choice)
    us = launch.sequence_us((*problem.kernel_us(choice).values(), *copies.values()))
    return LayoutTotal(name=name, us=us, copies=len(copies), optimal=optimal)


def _measured(request: TuneRequest, session: Session) -> LayoutManifest:
    network = open_network(request).network
    tell(TuneEvent(stage="layout", text="kernels are measured with images in other layouts"))
    search = LayoutSearch(session, network)
    found = search.run(_budget(request))
    choice = found.problem.choice(found.solution.choice)
    places = found.problem.kernels
    launch = _launching(session)
    unknown = [p for p in places if found.problem.costs.in_rows(p) is None]
    return LayoutManifest(
        plan=plan_of(choice, found.problem),
        totals=totals_of(found, network, launch),
        launch=launch,
        unmeasured=len(unknown),
        trials=found.trials,
        unused=found.unused,
        stopped=stopping(),
    )


def _launching(session: Session) -> LaunchCost:
    """Measured where the runner is one that can: on a device of this machine."""
    runner = session.runner
    if isinstance(runner, LocalRunner) and session.spec.outruns_host:
        return runner.launching(session.settings.options)
    return NO_LAUNCHES


def _in_blocks(request: TuneRequest, tuned: TunedTasks | None) -> LayoutManifest:
    """All images in blocks; for a tuned run kernels were measured so."""
    network = open_network(request).network
    choice, trials = uniform(network, BLOCKS), 0
    if tuned is not None:
        with searched_session(request, tuned) as session:
            search = LayoutSearch(session, network)
            trials = search.measure(choice, _budget(request))
    return LayoutManifest(plan=plan_of(choice), trials=trials, stopped=stopping())


def _budget(request: TuneRequest) -> Callable[[int], bool]:
    """Whether more may be measured, after so many candidates."""
    share, started = layout_share(request), perf_counter()
    if request.minutes is not None:
        seconds = 60 * request.minutes * share
        return lambda _: perf_counter() - started < seconds and not stopping()
    most = None if request.trials is None else round(request.trials * share)
    return lambda count: (most is None or count < most) and not stopping()
