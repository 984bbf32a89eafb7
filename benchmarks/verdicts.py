"""How often a planted change gets the right verdict in the morning, on simulated boards.

    python -m benchmarks.verdicts --nights 40 --wander 0.003 0.005 0.01

A board is noisy: rounds of a comparison scatter by --noise, and each program's time wanders from
one night to the next by --wander, as a part of the time. After --history quiet nights there are so
many nights more, each four times: quiet, with the costliest kernel of the network 10 % slower, with
a board that is 20 % slower, and with another driver. Every night is timed as a real one is
(`nightly.control`): champion, control network and calibration kernel in turns; with --process in a
process of its own, which takes seconds. A row says which part of the nights got the right verdict,
and how often `real` was wrong.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.command import parser_of
from retune.bundle.format import program_key, read_bundle, write_bundle
from retune.bundle.runtime.simulated import launch_seconds, simulated_times
from retune.bundle.verify.bench import Benchmark, BenchOptions
from retune.bundle.versions import MODULE, REPORT, Version, add_version, promote
from retune.device.opening import board_of, spec_of
from retune.device.simulated.board import read_board
from retune.nightly import control
from retune.nightly.control import stage_champion
from retune.nightly.verdicts import judge
from retune.pipeline.delivery import stage_compile
from retune.pipeline.manifest import Selection
from retune.pipeline.network import stage_extract, stage_import
from retune.pipeline.request import TuneRequest
from retune.records.nights import NightRow

NETWORK = "zoo:mlp"


class InProcess:
    """Compares bundles on a board as an examiner's process does, in this one."""

    def __init__(self, device: str) -> None:
        board = board_of(device)
        assert board is not None
        self._board = board

    def compare(
        self,
        entrants: Mapping[str, Path],
        *,
        baseline: str,
        options: BenchOptions,  # noqa: ARG002  rounds are simulated
        calibration: str,
    ) -> Benchmark:
        """Whole calls in turns."""
        plans = {name: read_bundle(bundle) for name, bundle in entrants.items()}
        return simulated_times(plans, self._board, baseline=baseline, calibration=calibration)


def in_process(device: str) -> AbstractContextManager[InProcess]:
    """What `open_examiner` is with processes."""
    return nullcontext(InProcess(device))


class Fleet:
    """A network that is published for a simulated board."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._board("board", "")
        self.out = folder / "out"
        self._publish()
        plan = read_bundle(self.out / MODULE)
        seconds = launch_seconds(plan, read_board(folder / "board.toml"))
        self.share, self.kernel = max(
            (time / sum(seconds), launch.kernel)
            for time, launch in zip(seconds, plan.launches, strict=True)
        )
        """The costliest kernel, and its part of the time."""

    def night(self, name: str, text: str) -> NightRow:
        """The times of a night on a board of which the text says more."""
        request = self._request(self._board(name, text))
        row = NightRow(fleet="fleet", night=name, network="mlp", device="board")
        return stage_champion(request, row)

    def _board(self, name: str, text: str) -> str:
        path = self.folder / f"{name}.toml"
        path.write_text(f'name = "board"\n{text}', encoding="utf-8")
        return f"sim:{path}"

    def _request(self, device: str) -> TuneRequest:
        work, records = self.folder / "work", self.folder / "records"
        return TuneRequest(
            NETWORK, self.folder / "out", records=records, work=work, device=device, trials=0
        )

    def _publish(self) -> None:
        request = self._request(f"sim:{self.folder / 'board.toml'}")
        network = stage_import(request)
        selection = Selection(target=spec_of(request.device).fingerprint)
        tasks = stage_extract(request, network)
        made = stage_compile(request, network, tasks, selection, "untuned")

        def make(folder: Path) -> Version:
            write_bundle(read_bundle(made.file(made.module)), folder / MODULE)
            (folder / REPORT).write_text("", encoding="utf-8")
            program = program_key(folder / MODULE)
            return Version(model_key="", target="", program=program, verdict="first")

        promote(self.out, add_version(self.out, make).number)


def planted(fleet: Fleet) -> dict[str, tuple[str, str]]:
    """What is planted -> the right verdict, and what a board is like with it."""
    slower = f'[[slower]]\nkernel = "{fleet.kernel}"\nfactor = 1.1\n'
    return {
        "nothing": ("noise", ""),
        "a kernel 10 % slower": ("real", slower),
        "the board 20 % slower": ("hardware", f"speed = {1 / 1.2}\n"),
        "another driver": ("method", 'driver = "2"\n'),
    }


def verdicts(fleet: Fleet, scatter: str, history: int, nights: int) -> dict[str, Counter[str]]:
    """What is planted -> verdict -> nights."""

    def timed(number: int, what: str) -> NightRow:
        text = f"{scatter}seed = {number}\n{changes[what][1]}"
        return fleet.night(f"{number:03}-{list(changes).index(what)}", text)

    changes = planted(fleet)
    found: dict[str, Counter[str]] = {what: Counter() for what in changes}
    quiet: list[NightRow] = []
    for number in range(history):
        quiet.append(judge(quiet, timed(number, "nothing")))
    for number in range(history, history + nights):
        judged = {what: judge(quiet, timed(number, what)) for what in changes}
        quiet.append(judged["nothing"])
        for what, row in judged.items():
            found[what][row.verdict] += 1
    return found


def show(fleet: Fleet, noise: float, wander: float, found: dict[str, Counter[str]]) -> None:
    """A line for each change that was planted."""
    for what, (right, _) in planted(fleet).items():
        counts, total = found[what], found[what].total()
        wrong = "" if right == "real" else f", real {counts['real']} times"
        others = ", ".join(f"{n} {v or 'none'}" for v, n in counts.most_common())
        print(
            f"noise {noise:.1%}, wander {wander:.1%}: {what:22} {right:8} "
            f"{counts[right] / total:6.1%} of {total} nights{wrong} ({others})",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the share of right verdicts for each level of noise."""
    parser = parser_of(__doc__)
    parser.add_argument("--nights", type=int, default=40)
    parser.add_argument("--history", type=int, default=20)
    parser.add_argument("--noise", type=float, default=0.02)
    parser.add_argument("--wander", type=float, nargs="+", default=[0.003, 0.005, 0.01])
    parser.add_argument("--process", action="store_true", help="time in processes")
    options = parser.parse_args(arguments)
    if not options.process:
        control.open_examiner = in_process  # pyrefly: ignore[bad-assignment]
    for wander in options.wander:
        with TemporaryDirectory() as folder:
            fleet = Fleet(Path(folder))
            if wander == options.wander[0]:
                print(f"{fleet.kernel}: {fleet.share:.0%} of the time of {NETWORK}")
            scatter = f"noise = {options.noise}\nwander = {wander}\n"
            found = verdicts(fleet, scatter, options.history, options.nights)
            show(fleet, options.noise, wander, found)


if __name__ == "__main__":
    main()
