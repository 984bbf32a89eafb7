"""Throughput of a night's lanes: two simulated boards at once, against one after the other.

    python -m benchmarks.lanes --minutes 2 --measure 0.2 zoo:mlp zoo:kws zoo:squeezenet_v1.1

Both boards take a fixed time for each measurement, and both tune the same networks, from an empty
store. Printed are the trials for each minute of wall time, with all that a night does besides
measuring (import, compilation, verification, report), the share of the planned minutes that was
measured, and the ratio of the two ways.
"""

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.command import parser_of
from retune.nightly.config import NightlyConfig, load_config
from retune.nightly.lanes import DeviceLane, MemberTurn, run_lanes
from retune.nightly.members import processes_of_this_machine, result_of, stage_plan
from retune.nightly.night import MemberResult, run_night
from retune.pipeline.calling import InProcess
from retune.pipeline.chain import run_chain
from retune.pipeline.results import TuneEvent
from retune.pipeline.watch import watching

NETWORKS = (
    *("zoo:mlp", "zoo:kws", "zoo:squeezenet_v1.1", "zoo:mobilenet", "zoo:resnet18_v1"),
    "zoo:dcgan",
)
BOARDS = ("one", "two")


@dataclass(frozen=True)
class Outcome:
    """What a night came to."""

    trials: int
    minutes: float
    """Of measuring, over all boards."""
    wall_s: float
    done: int

    @property
    def rate(self) -> float:
        """Trials for each minute of wall time."""
        return 60 * self.trials / self.wall_s


def fleet(folder: Path, networks: list[str], minutes: float, measure_s: float) -> NightlyConfig:
    """Two boards and these networks, in a folder of their own."""
    lines = ['out = "fleet"', 'records = "records"', 'work = "work"', f"minutes = {minutes}"]
    lines += [f'[[model]]\nmodel = "{network}"' for network in networks]
    for board in BOARDS:
        path = folder / f"{board}.toml"
        path.write_text(f'name = "{board}"\nbase = "pocl"\nmeasure_s = {measure_s}\n')
        lines.append(f'[[device]]\nname = "{board}"\ndevice = "sim:{board}.toml"')
    config = folder / "fleet.toml"
    config.write_text("\n".join(lines))
    return load_config(config)


def night(config: NightlyConfig, *, at_once: bool) -> Outcome:
    """All lanes carried out, at once or one after the other."""

    def tune(turn: MemberTurn) -> MemberResult:

        def follow(event: TuneEvent) -> None:
            if event.stage == "decided":
                turn.searched()

        with watching(progress=follow):
            request = config.request(*config.pair(turn.key), minutes=turn.minutes, campaign="lanes")
            return result_of(run_chain(request, InProcess()))

    def clock() -> datetime:
        return datetime.now(UTC)

    lanes: tuple[DeviceLane, ...] = stage_plan(config.file, "lanes").lanes
    begin = time.perf_counter()
    with run_night(Path(config.work), "lanes", processes_of_this_machine(), clock) as running:
        running.plan({member.key: 0.0 for lane in lanes for member in lane.members})
        for together in [lanes] if at_once else [(lane,) for lane in lanes]:
            run_lanes(together, running, tune, None, clock)
        running.end()
    results = [member.result for member in running.state.members if member.result]
    return Outcome(
        trials=sum(result.trials for result in results),
        minutes=sum(result.minutes for result in results),
        wall_s=time.perf_counter() - begin,
        done=len(results),
    )


def main() -> None:
    """Prints both ways and their ratio."""
    parser = parser_of(__doc__)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--minutes", type=float, default=2.0, help="of measuring on each board")
    parser.add_argument("--measure", type=float, default=0.2, help="seconds of a measurement")
    options = parser.parse_args()
    rates: list[float] = []
    for at_once in (False, True):
        with TemporaryDirectory() as folder:
            config = fleet(Path(folder), options.networks, options.minutes, options.measure)
            found = night(config, at_once=at_once)
        rates.append(found.rate)
        print(
            f"{'at once:  ' if at_once else 'in a row: '}{found.done} of {len(config.pairs)} done, "
            f"{found.trials} trials in {found.wall_s:.0f} s, {found.rate:.1f} a minute; "
            f"measured {found.minutes:.2f} of {2 * options.minutes:.2f} minutes",
            flush=True,
        )
    print(f"{rates[1] / rates[0]:.2f} times the throughput")


if __name__ == "__main__":
    main()
