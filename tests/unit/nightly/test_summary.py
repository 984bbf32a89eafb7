"""What people read of a night is what happened in it, and what it means since the first night."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.nightly.night import (
    Attempt,
    MemberResult,
    MemberState,
    NightState,
    Note,
    Status,
)
from retune.nightly.summary import (
    NightSummary,
    night_data,
    night_lines,
    night_markdown,
    night_page,
    night_rows,
    nights_of,
    notice_of,
    subject_of,
    summarize_night,
)
from tests.support.browser import needs_chromium, told
from tests.support.fakes import result
from tests.support.nights import night as a_row
from tests.support.properties import quick

MLP = ("mlp", "pocl")


def night(
    name: str,
    *members: tuple[str, Status, MemberResult | None],
    notes: tuple[Note, ...] = (),
    reason: str = "",
) -> NightState:
    return NightState(
        name=name,
        attempts=(
            Attempt(
                process="a",
                begun=f"2026-03-{name[-2:]}T22:00:00+00:00",
                ended=f"2026-03-{name[-2:]}T23:30:00+00:00",
                end="finished",
            ),
        ),
        members=tuple(
            MemberState(
                model=model,
                device="pocl",
                minutes=5.0,
                status=status,
                result=each,
                reason=reason if status in ("failed", "skipped") else "",
            )
            for model, status, each in members
        ),
        notes=notes,
    )


FIRST = night("2026-03-01", ("mlp", "done", result(None, 1000.0)))
SECOND = night("2026-03-02", ("mlp", "done", result(2000.0, 1600.0)))  # a slow night: twice
THIRD = night("2026-03-03", ("mlp", "done", result(800.0, 880.0, promoted=False)))


def test_gains_are_carried_from_night_to_night_without_the_machine_s_drift():
    made, champions = nights_of(MLP, [FIRST, SECOND, THIRD])
    assert made == pytest.approx([1000.0, 800.0, 880.0])
    assert champions == pytest.approx([1000.0, 800.0])
    (member,) = summarize_night(THIRD, [FIRST, SECOND]).members
    assert member.gain == pytest.approx(1.25)
    assert member.nights_us == pytest.approx((1000.0, 800.0, 880.0))


def test_a_bundle_of_before_the_first_night_is_what_gains_are_counted_from():
    (member,) = summarize_night(night("2026-03-01", ("mlp", "done", result(500.0, 400.0)))).members
    assert member.gain == pytest.approx(1.25)


def test_a_night_that_made_no_bundle_leaves_a_gap():
    lost = night("2026-03-02", ("mlp", "failed", None), reason="the device was lost")
    absent = night("2026-03-03", ("kws", "done", result(None, 5.0)))
    made, champions = nights_of(MLP, [FIRST, lost, absent, THIRD])
    assert made == pytest.approx([1000.0, None, 1100.0])
    assert champions == [1000.0]


def test_a_network_without_a_bundle_has_no_gain():
    (member,) = summarize_night(night("2026-03-01", ("mlp", "failed", None))).members
    assert (member.gain, member.nights_us) == (None, (None,))


@quick(100)
@given(st.lists(st.tuples(st.floats(0.5, 1.5), st.floats(0.2, 5.0), st.booleans()), max_size=8))
def test_the_gain_is_the_product_of_what_was_promoted(
    nights: list[tuple[float, float, bool]],
):
    """However fast the machine was in each night."""
    states = [FIRST]
    expected = 1.0
    for number, (ratio, pace, promoted) in enumerate(nights, 2):
        champion = 1000.0 * pace
        done = result(champion, champion * ratio, promoted=promoted)
        states.append(night(f"2026-03-{number:02}", ("mlp", "done", done)))
        expected /= ratio if promoted else 1.0
    (member,) = summarize_night(states[-1], states[:-1]).members
    assert member.gain == pytest.approx(expected)


@pytest.fixture
def summary() -> NightSummary:
    state = night(
        "2026-03-02",
        ("mlp", "done", result(2000.0, 1600.0, failures=("task conv_3: no right candidate",))),
        ("kws", "done", result(80.0, 88.0, promoted=False)),
        ("resnet", "failed", None),
        ("vgg", "skipped", None),
        notes=(
            Note(step="retrain", text="a better model is in use"),
            Note(step="compact", text="no space left | on <disk>", failed=True),
        ),
        reason="the device was lost",
    )
    return summarize_night(state, [FIRST])


def test_it_counts_what_was_promoted_and_what_failed(summary: NightSummary):
    assert (summary.promoted, summary.failed) == (1, 3)  # a task, a network, a step
    assert summary.events == ("failure", "promotion")
    assert subject_of(summary) == "retune night 2026-03-02: 1 of 4 bundles promoted, 3 failed"
    assert [member.outcome for member in summary.members] == [
        *("promoted", "champion stays", "failed", "skipped"),
    ]


def test_a_night_says_in_one_line_why_it_is_not_a_good_one(summary: NightSummary):
    assert summary.fault == "failed: mlp/pocl, resnet/pocl, compact"
    assert summarize_night(THIRD).fault == ""
    many = night("2026-03-04", *((f"net{n}", "failed", None) for n in range(7)))
    assert summarize_night(many).fault == (
        "failed: net0/pocl, net1/pocl, net2/pocl, net3/pocl, net4/pocl, 2 more; no network was "
        "tuned"
    )
    stopped = replace(THIRD.attempts[0], reason="no more was to be measured")
    assert summarize_night(replace(THIRD, attempts=(stopped,))).fault == (
        "stopped: no more was to be measured"
    )


def test_a_quiet_night_is_nothing_to_hear_of():
    assert summarize_night(THIRD).events == ()
    assert subject_of(summarize_night(THIRD)) == ("retune night 2026-03-03: 0 of 1 bundle promoted")


@pytest.fixture
def judged() -> NightSummary:
    """A night whose networks have verdicts on their absolute times."""
    state = night(
        "2026-03-02",
        *((name, "done", result(80.0, 88.0, promoted=False)) for name in ("mlp", "kws", "vgg")),
        ("lost", "failed", None),
        reason="the device was lost",
    )
    change = {"change_low": 1.08, "change_high": 1.12, "why": "beside the controls"}
    rows = [
        a_row(1, network="mlp", device="pocl", verdict="real", change=1.1, **change),
        a_row(1, network="kws", device="pocl", verdict="hardware", change=1.1, **change),
        a_row(1, network="vgg", device="pocl", verdict="real", change=0.9, change_low=0.89,
              change_high=0.91, why="the night published a bundle that is faster"),
        a_row(1, network="lost", device="pocl", time_us=None, why="it was not timed"),
    ]  # fmt: skip
    return summarize_night(state, [], {row.key: row for row in rows})


def test_why_a_member_failed_is_said_once(judged: NightSummary):
    lost = judged.members[-1]
    state = replace(lost.state, status="failed", reason="no such file")
    assert lost.row is not None
    twice = replace(lost, state=state, row=replace(lost.row, why="it was not timed: no such file"))
    lines = night_lines(replace(judged, members=(twice,)))
    assert lines[-2:] == [
        "lost/pocl: failed; no such file",
        "lost/pocl: no verdict: it was not timed",
    ]
    assert night_page(replace(judged, members=(twice,))).count("no such file") == 1


def test_verdicts_stand_in_rows_lines_data_markdown_and_page(judged: NightSummary):
    rows = night_rows(judged)
    assert [row["verdict"] for row in rows] == ["real", "hardware", "real", None]
    assert rows[0]["change"] == "1.100x (1.080 to 1.120)"
    lines = night_lines(judged)
    assert "mlp/pocl: real, 1.100x (1.080 to 1.120) of the time: beside the controls" in lines
    assert "lost/pocl: no verdict: it was not timed" in lines
    found = night_data(judged)["members"][0]["verdict"]  # type: ignore[index]
    assert (found["verdict"], found["change"], found["control_us"]) == ("real", 1.1, 500.0)
    json.dumps(night_data(judged))
    assert "| hardware | 1.100x (1.080 to 1.120) |" in night_markdown(judged)
    text = night_page(judged)
    assert "<b>1</b><span>real regressions</span>" in text
    assert '<span class="verdict bad">real</span>' in text
    assert '<span class="verdict">hardware</span>' in text


def test_what_is_slower_is_an_event_and_what_is_faster_is_none(judged: NightSummary):
    assert judged.events == ("failure", "regression", "hardware")
    assert subject_of(judged).endswith("0 of 4 bundles promoted, 1 failed, 1 real regression")
    assert notice_of(judged).events == judged.events


def test_a_row_has_the_numbers_of_the_night(summary: NightSummary):
    rows = night_rows(summary)
    assert rows[0] == {
        "network": "mlp",
        "device": "pocl",
        "outcome": "promoted",
        "minutes": "4.5 of 5.0",
        "trials": 100,
        "champion": "2 ms (1.96 ms to 2.06 ms)",
        "challenger": "1.6 ms (1.57 ms to 1.65 ms)",
        "ratio": "0.800 (0.792 to 0.808)",
        "gain": 1.25,
        "verdict": None,
        "change": "–",
    }
    assert (rows[2]["minutes"], rows[2]["trials"], rows[2]["gain"]) == ("– of 5.0", None, None)


def test_the_lines_say_why(summary: NightSummary):
    assert night_lines(summary) == [
        "mlp/pocl: promoted; it is faster",
        "mlp/pocl: task conv_3: no right candidate",
        "kws/pocl: champion stays; it is not faster",
        "resnet/pocl: failed; the device was lost",
        "vgg/pocl: skipped; the device was lost",
        "retrain: a better model is in use",
        "compact: failed: no space left | on <disk>",
    ]


def test_the_markdown_is_one_table_and_the_lines(summary: NightSummary):
    text = night_markdown(summary)
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 2 + 4
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {12}
    assert "- compact: failed: no space left \\| on <disk>" in text


def test_the_data_is_json_with_everything(summary: NightSummary):
    data = json.loads(json.dumps(night_data(summary), allow_nan=False))
    assert (data["night"], data["promoted"], data["failed"]) == ("2026-03-02", 1, 3)
    mlp = data["members"][0]
    assert mlp["result"]["statuses"] == {"ok": 90, "timeout": 10}
    assert mlp["result"]["challenger"]["median_us"] == 1600.0
    assert mlp["nights_us"] == [1000.0, 800.0]
    assert data["members"][2]["result"] is None


def test_the_notice_has_subject_lines_data_and_events(summary: NightSummary):
    notice = notice_of(summary)
    assert notice.subject == subject_of(summary)
    assert notice.text.splitlines() == night_lines(summary)
    assert notice.data == night_data(summary)
    assert notice.events == summary.events


class Page(HTMLParser):
    """Tags that are open, and what the page refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in ("meta", "br", "path", "circle", "rect"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_else_and_shows_every_network(summary: NightSummary):
    text = night_page(summary, "Europe/Berlin")
    page = Page(text)
    assert page.open == []
    assert page.addresses == ["index.html"] and "link" not in page.tags
    for words in ("mlp", "kws", "resnet", "vgg", "1.25 ×", "the device was lost", "a better model"):
        assert words in text
    assert "2026-03-02 23:00 to 2026-03-03 00:30" in text
    assert "on &lt;disk&gt;" in text
    assert page.tags.count("svg") == 2  # networks that ever had a bundle
    assert "2 nights</text>" in text and "1 night</text>" in text


def test_the_page_of_a_night_that_has_just_begun():
    state = NightState(name="x", attempts=(Attempt(process="a", begun="2026-03-01T22:00:00Z"),))
    text = night_page(summarize_night(state))
    assert "2026-03-01 22:00 to now" in text
    assert Page(text).open == []


CLICKS = """
const rows = document.querySelector("table").tBodies[0].rows;
const head = document.querySelector("thead th");
head.click();
told.push([...rows].map((row) => row.cells[0].textContent.trim()).join(" "));
head.click();
told.push([...rows].map((row) => row.cells[0].textContent.trim()).join(" "));
document.querySelectorAll("th, a").forEach((each) => each.click());
"""


@pytest.mark.slow
@pytest.mark.process
@needs_chromium
@pytest.mark.parametrize("width", [390, 1400])
def test_a_browser_takes_every_click_on_a_night(width: int, summary: NightSummary, tmp_path: Path):
    first, second, fits, errors = told(night_page(summary), CLICKS, width, tmp_path)
    names = sorted(member.state.model for member in summary.members)
    assert (first.split(), second.split()) == (names, names[::-1])
    assert (fits, errors) == ("true", "none")
