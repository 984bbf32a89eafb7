"""The report is one file that needs nothing else, and shows what it was given."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from retune.core.results import KernelTime
from retune.report.html import render
from retune.report.svg import Bar, bar_chart, best_so_far, curve_chart
from tests.support.browser import needs_chromium, told
from tests.support.sample import detailed, sample

VOID = {"meta", "br", "hr", "img", "link", "input", "path", "rect", "circle"}


class Balance(HTMLParser):
    """Fails on a tag that is not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_well_formed():
    parser = Balance()
    parser.feed(render(sample()))
    assert parser.open == []


def test_page_needs_nothing_from_outside():
    page = render(sample())
    assert not re.search(r"https?://|<link|<img|@import|url\(|src=", page)


def test_page_shows_every_task_and_number():
    data = sample()
    page = render(data)
    for task in data.tasks:
        assert task.entry.name in page
    assert "5.12 ms" in page
    assert "6.15 ×" in page
    assert "wrong result" in page
    assert page.count('class="curve"') == len(data.curves)


def test_names_are_escaped():
    data = replace(sample(tasks=2), network="<b>net</b>")
    page = render(data)
    assert "<b>net</b>" not in page
    assert "&lt;b&gt;net&lt;/b&gt;" in page
    assert "<two>" not in page


def test_same_data_gives_the_same_page():
    assert render(sample()) == render(sample())


def test_run_without_measurements_renders():
    data = replace(sample(tasks=1), curves=(), failures=(), profile=(), latency=())
    page = render(data)
    assert "Outcomes" not in page
    assert "Time by kernel" not in page


def test_host_steps_are_marked():
    data = sample(tasks=2)
    assert "on the host" not in render(data)
    step = KernelTime(
        label="NonMaxSuppression, Gather", kernel="", us=120.0, flops=0, bytes=0, host=True
    )
    parts = replace(data.verification, by_parts=True)
    page = render(replace(data, profile=(*data.profile, step), verification=parts))
    assert "NonMaxSuppression, Gather" in page
    assert re.search(r"120 µs, [\d.]+ %, on the host<", page)
    assert "Steps on the host are timed there" in page
    assert "parts were compared" in page


def test_launches_that_a_call_runs_often_say_how_often():
    data = sample(tasks=2)
    step = replace(data.profile[0], times=14)
    assert " runs a call" not in render(data)
    assert re.search(r"%, 14 runs a call, ", render(replace(data, profile=(step,))))


def test_times_that_were_counted_are_not_called_measured():
    data = sample(tasks=1)
    assert "all were measured interleaved" in render(data)
    page = render(replace(data, simulated=True))
    assert "those of the simulated device are counted" in page
    assert "measured interleaved" not in page


def test_shares_are_of_the_bundle_and_each_time_says_where_it_was_taken():
    data = detailed(sample(tasks=3))
    first, *others = data.tasks
    slow = data.tasks[-1].entry
    details = [replace(d, measured_us=1e7) if d.task_key == slow.key else d for d in data.details]
    tasks = (replace(first, alone=True), *others)
    page = render(replace(data, tasks=tasks, details=tuple(details), network_times=True))
    row = page.partition('id="tasks"')[2].partition("<tbody>")[2].partition("</tr>")[0]
    assert slow.name in row and float(re.findall(r"([\d.]+) %</td>", row)[-1]) > 50
    told = re.findall(r"<b>([^<]+)</b> <span>[^<]* (alone|in the network)", page)
    assert told and {name for name, how in told if how == "alone"} == {first.entry.name}


def test_failed_verification_is_said():
    data = sample(tasks=2)
    data = replace(data, verification=replace(data.verification, passed=False))
    assert "Does not agree" in render(data)


def test_best_so_far_never_rises():
    assert best_so_far([None, 3.0, 5.0, None, 2.0]) == [None, 3.0, 3.0, 3.0, 2.0]
    assert best_so_far([]) == []


@pytest.mark.parametrize("times", [[5.0], [5.0, 5.0], [1e-3, 1e7], [None, 2.0], [None], []])
def test_curves_of_any_length_and_range_stay_inside(times: list[float | None]):
    svg = curve_chart(times)
    assert "nan" not in svg
    numbers = [float(y) for y in re.findall(r'cy="([-\d.]+)"', svg)]
    assert all(0 <= y <= 130 for y in numbers)
    assert len(numbers) == len([t for t in times if t is not None])


def test_bars_fill_the_width_and_no_line_is_longer_than_a_phone():
    bars = [
        Bar(
            label="slow " * 20,
            value=9.0,
            text="425 µs, 19.7 %, 417 GFLOP/s, 101 % of roofline, " * 2,
        ),
        Bar(label="fast", value=1.0, text="1 µs", low=0.5, high=10.0),
    ]
    svg = bar_chart(bars, "t")
    lines = re.findall(r">([^<\n]+)<(?:/tspan|title)", svg)
    assert max(map(len, lines)) <= 50
    assert " ".join(lines[1:-2]) == bars[0].text.strip()
    assert re.findall(r'width="([\d.]+)%"', svg) == ["100", "90.0", "10.0"]
    assert re.findall(r'x1="([\d.]+)%" x2="([\d.]+)%"', svg)[0] == ("5.0", "100.0")


def test_one_measurement_is_a_line_too():
    svg = curve_chart([5.0])
    assert re.search(r'class="best" d="M46\.0 [\d.]+H292\.0"', svg)
    assert ">1 measurement<" in svg


def test_curve(golden: object):
    assert curve_chart([9.0, None, 4.0, 6.0, 3.0]) == golden


def test_bars(golden: object):
    bars = [
        Bar(label="tuned", value=3.0, text="3 ms", low=2.0, high=4.0, style="ours"),
        Bar(label="a name that is longer than its place", value=0.0, text="0"),
    ]
    assert bar_chart(bars, "title") == golden


CLICKS = """
const table = document.querySelector("#tasks ~ .scroll > table");
const heads = [...table.tHead.rows[0].cells];
const gflops = heads.findIndex((head) => head.textContent.startsWith("GFLOP"));
const column = () => [...table.tBodies[0].rows].map((row) => row.cells[gflops].textContent.trim());
heads[gflops].click();
told.push(column().join(" "));
heads[gflops].click();
told.push(column().join(" "));
const field = document.querySelector("#tasks ~ input[type=search]");
field.value = table.tBodies[0].rows[0].cells[0].textContent;
field.dispatchEvent(new Event("input"));
told.push([...table.tBodies[0].rows].filter((row) => !row.hidden).length);
document.querySelectorAll("th, summary, button, a").forEach((each) =>
  each.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true })));
document.querySelectorAll("th").forEach((each) =>
  each.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true })));
document.querySelectorAll("svg title").forEach((each) =>
  each.parentElement.dispatchEvent(new PointerEvent("pointermove", { bubbles: true })));
document.querySelectorAll("input[type=search]").forEach((each) => {
  each.value = "no such text";
  each.dispatchEvent(new Event("input"));
});
told.push([...document.querySelectorAll(".layers > details")].filter((row) => !row.hidden).length);
told.push(document.querySelector(".tip").textContent.length > 0);
told.push([...document.querySelectorAll(".bars text")].every((text) =>
  text.getBBox().width <= text.ownerSVGElement.clientWidth));
"""


@pytest.mark.slow
@pytest.mark.process
@needs_chromium
@pytest.mark.parametrize("width", [390, 1400])
def test_a_browser_sorts_filters_and_takes_every_click(width: int, tmp_path: Path):
    html = render(detailed(sample(tasks=12)), detailed(sample(tasks=12, seed=1)))
    down, up, shown, layers, tip, bars, fits, errors = told(html, CLICKS, width, tmp_path)
    falling = [float(word.replace(",", "")) for word in down.split() if word != "–"]
    assert falling == sorted(falling, reverse=True) and len(set(falling)) > 1
    assert [float(w.replace(",", "")) for w in up.split() if w != "–"] == sorted(falling)
    assert (shown, layers, tip, bars, fits, errors) == ("1", "0", "true", "true", "true", "none")
