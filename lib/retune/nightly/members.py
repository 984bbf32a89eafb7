"""Members of the fleet between configuration, stages and the state of the night.

Read `stage_plan` (before a night) and `result_of` (after a member's run).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from retune.core.errors import RetuneError
from retune.core.locking import exclusive
from retune.core.processes import Holder, is_alive, this_process
from retune.core.results import Latency
from retune.device.opening import spec_of
from retune.nightly.config import NightlyConfig, load_config
from retune.nightly.fleet import Key
from retune.nightly.night import Measured, MemberResult, NightState, Processes, read_nights
from retune.nightly.planning import Standing, plan_minutes
from retune.nightly.summary import nights_of
from retune.pipeline.network import open_network, stage_extract, stage_import
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import TuneResult
from retune.records.store import RecordStore
from retune.search.conditions import network_conditions, usual_options
from retune.search.model.registry import registered


@dataclass(frozen=True, slots=True, kw_only=True)
class NightPlan:
    """What a night is to do."""

    minutes: tuple[tuple[str, str, float], ...]
    """Network, device, minutes of measuring."""
    broken: tuple[tuple[str, str, str], ...] = ()
    """Network, device, and why it cannot be tuned."""


def stage_plan(file: str, name: str, seconds_left: float) -> NightPlan:
    """Minutes for every member of the configuration in that file, in the night of that name.

    Members whose network cannot be imported have a sentence instead. `seconds_left` are those until
    the window closes. Raises: InputError for a file that cannot be used.
    """
    config = load_config(Path(file))
    nights = earlier_nights(config, name)
    standings: dict[Key, Standing] = {}
    broken: list[tuple[str, str, str]] = []
    for model, device in config.pairs:
        key = (model.name, device.name)
        request = config.request(model, device, minutes=config.minutes, campaign=name)
        try:
            standings[key] = _standing(request, key, nights)
        except RetuneError as error:
            broken.append((*key, str(error)))
    shares = plan_minutes(config, standings, RecordStore(config.records), seconds_left=seconds_left)
    minutes = tuple((*key, share) for key, share in shares.items())
    return NightPlan(minutes=minutes, broken=tuple(broken))


def _standing(request: TuneRequest, key: Key, nights: Sequence[NightState]) -> Standing:
    """The network on its device as it stands; `nights` are the earlier ones."""
    spec = spec_of(request.device)
    entries = stage_extract(request, stage_import(request)).tasks
    tasks = open_network(request).network.tasks.values()
    _, champions = nights_of(key, nights)
    return Standing(
        tasks=entries,
        conditions=network_conditions(spec, tasks, usual_options(spec)),
        latency_us=champions[-1] if champions else None,
    )


def result_of(result: TuneResult) -> MemberResult:
    """What the night's run did, for the state of the night."""
    published = result.published
    assert published is not None  # every run publishes, or says why not
    own = next((row for row in result.latency if row.name == "tuned"), None)
    ratio, low, high = published.ratio or (None, None, None)
    return MemberResult(
        minutes=result.seconds / 60,
        trials=result.trials,
        statuses=result.statuses,
        champion=_measured(published.champion),
        challenger=_measured(published.challenger or own),
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
        promoted=published.promoted,
        reason=published.why,
        failures=tuple(f"search of {task}: {why}" for task, why in result.failed),
        report=result.report,
    )


def _measured(row: Latency | None) -> Measured | None:
    if row is None:
        return None
    return Measured(median_us=row.median_us, low_us=row.p25_us, high_us=row.p75_us)


def earlier_nights(config: NightlyConfig, name: str) -> list[NightState]:
    """The nights of the same work folder but the one of that name, the oldest first."""
    return [night for night in read_nights(Path(config.work)) if night.name != name]


def new_records(records: str) -> int:
    """How many records are newer than those that the newest cost model was trained on."""
    cards = registered(Path(records))
    measured = RecordStore(records).scan(columns=["timestamp"])["timestamp"]
    if not cards:
        return len(measured)
    until = datetime.fromisoformat(cards[-1].until).replace(tzinfo=UTC)  # stated without a zone
    newer = (measured > until).to_numpy(bool, na_value=False)  # rows of others may have no moment
    return int(newer.sum())


def page_of(config: NightlyConfig, name: str) -> Path:
    """Where the page of the night of that name lies."""
    return Path(config.out) / "nights" / f"{name}.html"


def processes_of_this_machine() -> Processes:
    """How nights tell processes apart, and lock each other out."""
    return Processes(
        me=this_process().to_line(),
        alive=_runs,
        describe=_described,
        hold=partial(exclusive, doing="the night is being run", wait=False),
    )


def _runs(line: str) -> bool:
    holder = Holder.from_line(line)
    return holder is None or is_alive(holder)


def _described(line: str) -> str:
    return str(Holder.from_line(line) or line)
