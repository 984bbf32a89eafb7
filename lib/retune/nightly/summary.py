"""The summary of a night for people: console rows, Markdown, JSON, a page, and a notice.

Read NightSummary and `summarize_night`. Everything follows from the states of this night and of
those before it, and from the night's rows of the table of nights, which have the verdicts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from retune.core.errors import RetuneError
from retune.core.quantities import counted
from retune.nightly.config import Event
from retune.nightly.fleet import Key
from retune.nightly.history import change_text, is_slower
from retune.nightly.night import Measured, MemberResult, MemberState, NightState, Note
from retune.nightly.notify import Notice
from retune.pipeline.rows import Row
from retune.records.nights import NightRow
from retune.report.page import page, time_text
from retune.report.svg import curve_chart

_NONE = "–"
JUDGED = (
    *("verdict", "change", "change_low", "change_high", "why"),
    *("time_us", "control_us", "kernel_us"),
)
"""Fields of a NightRow that `--json` prints of each member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSummary:
    """A network on a device: its night, and the way there."""

    state: MemberState
    nights_us: tuple[float | None, ...]
    """Time of the bundle that each night made, in microseconds; None: it made none. See
    `nights_of`."""
    gain: float | None
    """How many times as fast as on its first night it is now. None: it has no bundle yet."""
    row: NightRow | None = None
    """Its absolute time and the verdict on that, from the table of nights; None: not judged yet."""

    @property
    def result(self) -> MemberResult | None:
        """What the night did."""
        return self.state.result

    @property
    def failed(self) -> bool:
        """True if something about it failed tonight."""
        return self.state.status == "failed" or bool(self.result and self.result.failures)

    @property
    def outcome(self) -> str:
        """One or two words."""
        match self.state.status:
            case "done":
                promoted = self.result is not None and self.result.promoted
                return "promoted" if promoted else "champion stays"
            case "planned" | "running" | "failed" | "skipped" as status:
                return status

    @property
    def reason(self) -> str:
        """Why it is so, as a sentence."""
        return self.state.reason or (self.result.reason if self.result else "")

    @property
    def why(self) -> str:
        """Why it has its verdict or none, without `reason`, which stands beside it."""
        return self.row.why.removesuffix(f": {self.reason}") if self.row else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NightSummary:
    """A night."""

    name: str
    begun: str
    """ISO 8601, UTC; as `ended` is."""
    ended: str
    """Empty while it is run."""
    members: tuple[MemberSummary, ...]
    notes: tuple[Note, ...]
    stopped: str = ""
    """Why it ended before all was done."""

    @property
    def promoted(self) -> int:
        """How many networks have a new bundle, counted on each device."""
        return sum(member.outcome == "promoted" for member in self.members)

    @property
    def failed(self) -> int:
        """How many networks something failed of, and steps of the whole fleet."""
        return sum(m.failed for m in self.members) + sum(note.failed for note in self.notes)

    @property
    def regressions(self) -> tuple[MemberSummary, ...]:
        """Networks that are slower tonight by themselves."""
        return tuple(m for m in self.members if m.row and is_slower(m.row, "real"))

    @property
    def slowed(self) -> tuple[MemberSummary, ...]:
        """Networks that are slower tonight since the machine is."""
        return tuple(m for m in self.members if m.row and is_slower(m.row, "hardware"))

    @property
    def idle(self) -> bool:
        """True if no network was tuned in it, in no attempt."""
        return not any(member.result or member.state.begun for member in self.members)

    @property
    def fault(self) -> str:
        """Why not all of it was done well, in one line; empty if it was."""
        failed = ["/".join(member.state.key) for member in self.members if member.failed]
        failed += [note.step for note in self.notes if note.failed]
        more = [f"{len(failed) - _NAMED} more"] if len(failed) > _NAMED else []
        faults = [f"failed: {', '.join([*failed[:_NAMED], *more])}"] if failed else []
        faults += [f"stopped: {self.stopped}"] if self.stopped else []
        faults += ["no network was tuned"] if self.idle else []
        return "; ".join(faults)

    @property
    def events(self) -> tuple[Event, ...]:
        """What happened that somebody may want to hear of."""
        happened: dict[Event, object] = {
            "failure": self.failed or self.stopped,
            "idle": self.idle,
            "promotion": self.promoted,
            "regression": self.regressions,
            "hardware": self.slowed,
        }
        return tuple(event for event, so in happened.items() if so)


class NightFailed(RetuneError):
    """A night ended in which something failed, or nothing was tuned; what is done is kept."""

    def __init__(self, summary: NightSummary, state: NightState) -> None:
        super().__init__(
            f"night {state.name}: {summary.fault}; what is done is kept, and the night tries the "
            "rest when it is run again"
        )
        self.state = state
        """The end of the night."""


def summarize_night(
    state: NightState,
    earlier: Sequence[NightState] = (),
    judged: Mapping[Key, NightRow] | None = None,
) -> NightSummary:
    """The summary of a night; `earlier` are the nights before it, the oldest first, and `judged`
    the night's rows of the table of nights."""
    rows = judged or {}
    return NightSummary(
        name=state.name,
        begun=state.begun,
        ended=state.attempts[-1].ended if state.attempts else "",
        members=tuple(
            _member(member, [*earlier, state], rows.get(member.key)) for member in state.members
        ),
        notes=state.notes,
        stopped=state.attempts[-1].reason if state.attempts else "",
    )


def nights_of(key: Key, nights: Sequence[NightState]) -> tuple[list[float | None], list[float]]:
    """Of each night the time of the bundle that it made, and the times of successive champions.

    Microseconds, as they would be on the network's first night: a later night's time is its
    champion's of before times the ratio that was taken in turns, so a machine that is slower than
    it was, or was disturbed, does not show.
    """
    made: list[float | None] = []
    champions: list[float] = []
    for night in nights:
        member = night.member(key)
        if member is None:
            continue
        result = member.result or _NOTHING
        if not champions and result.champion is not None:
            champions.append(result.champion.median_us)
        time_us = _time_us(result, champions)
        made.append(time_us)
        if result.promoted and time_us is not None:
            champions.append(time_us)
    return made, champions


def night_rows(summary: NightSummary) -> list[Row]:
    """One row for each network and device, for a table."""
    return [_row(member) for member in summary.members]


def night_lines(summary: NightSummary) -> list[str]:
    """Below the table: why each is as it is, what failed, and what came of the fleet's steps."""
    lines = [f"the night was stopped: {summary.stopped}"] if summary.stopped else []
    lines += ["nothing was tuned in this night"] if summary.idle else []
    for member in summary.members:
        name = "/".join(member.state.key)
        lines.append(f"{name}: {member.outcome}{f'; {member.reason}' if member.reason else ''}")
        lines += [f"{name}: {_verdict_text(member.row, member.why)}"] if member.row else []
        lines += [f"{name}: {failure}" for failure in (member.result or _NOTHING).failures]
    return lines + [
        f"{note.step}: {'failed: ' if note.failed else ''}{note.text}" for note in summary.notes
    ]


def _verdict_text(row: NightRow, why: str) -> str:
    """The verdict as a line: which, on what change, and why."""
    if not row.verdict:
        return f"no verdict: {why}"
    change = f", {change_text(row)} of the time" if row.change is not None else ""
    return f"{row.verdict}{change}: {why}"


def night_data(summary: NightSummary) -> Row:
    """The whole summary as plain data, for `--json`."""
    return {
        "night": summary.name,
        "begun": summary.begun,
        "ended": summary.ended,
        "promoted": summary.promoted,
        "failed": summary.failed,
        "stopped": summary.stopped,
        "events": list(summary.events),
        "members": [
            {
                **{k: v for k, v in asdict(member.state).items() if k != "result"},
                "outcome": member.outcome,
                "gain": member.gain,
                "nights_us": list(member.nights_us),
                "verdict": member.row and _verdict_data(member.row),
                "result": member.result and _result_data(member.result),
            }
            for member in summary.members
        ],
        "notes": [asdict(note) for note in summary.notes],
    }


def night_markdown(summary: NightSummary) -> str:
    """The summary as Markdown, with a table."""
    rows = night_rows(summary)
    titles = list(rows[0]) if rows else []
    table = [titles, ["---"] * len(titles), *([_cell(row[t]) for t in titles] for row in rows)]
    return "\n".join(
        [
            f"# {subject_of(summary)}",
            "",
            *(f"| {' | '.join(cells)} |" for cells in table if cells),
            "",
            *(f"- {_escaped(line)}" for line in night_lines(summary)),
        ]
    )


def night_page(summary: NightSummary, timezone: str = "UTC") -> str:
    """The summary as a page that needs nothing else; moments by the clock of the time zone."""
    done = [member.result for member in summary.members if member.result]
    curves = [
        {"member": member, "svg": curve_chart(member.nights_us, "night")}
        for member in summary.members
        if any(member.nights_us)
    ]
    return page(
        "night.html.j2",
        name=summary.name,
        when=f"{_shown(summary.begun, timezone)} to {_shown(summary.ended, timezone)}",
        headline=(
            ("real regressions", str(len(summary.regressions))),
            ("new bundles", str(summary.promoted)),
            ("failures", str(summary.failed)),
            ("minutes of measuring", f"{sum(result.minutes for result in done):.1f}"),
            ("trials", f"{sum(result.trials for result in done):,}"),
        ),
        members=[(member, _row(member)) for member in summary.members],
        notes=summary.notes,
        curves=curves,
        regressions=summary.regressions,
        stopped=summary.stopped,
    )


def notice_of(summary: NightSummary) -> Notice:
    """What people are told of the night."""
    return Notice(
        subject=subject_of(summary),
        text="\n".join(night_lines(summary)),
        data=night_data(summary),
        events=summary.events,
    )


def subject_of(summary: NightSummary) -> str:
    """The night in one line."""
    of = counted(len(summary.members), "bundle")
    parts = [f"retune night {summary.name}: {summary.promoted} of {of} promoted"]
    parts += [f"{summary.failed} failed"] if summary.failed else []
    parts += ["stopped"] if summary.stopped else []
    regressions = len(summary.regressions)
    parts += [counted(regressions, "real regression")] if regressions else []
    return ", ".join(parts)


_NAMED = 5
"""Parts that a line names of those that failed."""
_NOTHING = MemberResult(minutes=0.0, trials=0)


def _member(
    state: MemberState, nights: Sequence[NightState], row: NightRow | None
) -> MemberSummary:
    made, champions = nights_of(state.key, nights)
    gain = champions[0] / champions[-1] if champions else None
    return MemberSummary(state=state, nights_us=tuple(made), gain=gain, row=row)


def _time_us(result: MemberResult, champions: Sequence[float]) -> float | None:
    if champions and result.ratio is not None:
        return champions[-1] * result.ratio
    return result.challenger.median_us if result.challenger else None


def _row(member: MemberSummary) -> Row:
    result = member.result
    return {
        "network": member.state.model,
        "device": member.state.device,
        "outcome": member.outcome,
        "minutes": _minutes(member),
        "trials": result.trials if result else None,
        "champion": _interval(result.champion if result else None),
        "challenger": _interval(result.challenger if result else None),
        "ratio": _ratio(result),
        "gain": None if member.gain is None else round(member.gain, 2),
        "verdict": (member.row and member.row.verdict) or None,
        "change": change_text(member.row) if member.row else _NONE,
    }


def _minutes(member: MemberSummary) -> str:
    spent = _digits(member.result.minutes) if member.result else _NONE
    return f"{spent} of {_digits(member.state.minutes)}"


def _digits(minutes: float) -> str:
    """One digit behind the point, or two of what is less than a minute."""
    return f"{minutes:.1f}" if minutes >= 1 else f"{minutes:.2g}"


def _interval(measured: Measured | None) -> str:
    if measured is None:
        return _NONE
    low, high = time_text(measured.low_us), time_text(measured.high_us)
    return f"{time_text(measured.median_us)} ({low} to {high})"


def _ratio(result: MemberResult | None) -> str:
    if result is None or result.ratio is None:
        return _NONE
    if result.ratio_low is None or result.ratio_high is None:
        return f"{result.ratio:.3f}"
    return f"{result.ratio:.3f} ({result.ratio_low:.3f} to {result.ratio_high:.3f})"


def _verdict_data(row: NightRow) -> Row:
    return {name: getattr(row, name) for name in JUDGED}


def _result_data(result: MemberResult) -> Row:
    return {**asdict(result), "statuses": dict(result.statuses)}


def _shown(moment: str, timezone: str) -> str:
    if not moment:
        return "now"
    return datetime.fromisoformat(moment).astimezone(ZoneInfo(timezone)).strftime("%Y-%m-%d %H:%M")


def _cell(value: object) -> str:
    return _NONE if value is None else _escaped(str(value))


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
