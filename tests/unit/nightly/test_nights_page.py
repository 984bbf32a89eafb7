"""The page over all nights: its headline is the number of real regressions."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from retune.nightly.nights_page import nights_page
from retune.records.nights import NightRow
from tests.support.browser import needs_chromium, told
from tests.support.nights import judged, quiet, slowed


class Words(HTMLParser):
    """The text of a page, and where its links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if name == "href" and value]

    def handle_data(self, data: str) -> None:
        self.words += data.split()

    @property
    def text(self) -> str:
        return " ".join(self.words)


def fleet() -> list[NightRow]:
    """A network that is slower by itself, one with the machine, one that is as it was."""
    rows: list[NightRow] = []
    for name, seed, factors in (
        ("slow", 1, {"time": 1.1}),
        ("along", 2, {"time": 1.3, "control": 1.3, "kernel": 1.3}),
        ("<same>", 3, {}),
    ):
        nights = quiet(30, seed)
        changed = [*nights[:20], *(slowed(row, **factors) for row in nights[20:])]
        rows += judged([replace(row, network=name) for row in changed])
    return sorted(rows, key=lambda row: row.measured)


def test_the_headline_is_the_number_of_real_regressions():
    text = nights_page("fleet", fleet())
    assert re.search(r'<div class="number alarm"><b>1</b><span>real regression</span>', text)
    assert "<title>1 real regression, nights of fleet</title>" in text
    quiet_rows = [row for row in fleet() if row.network == "<same>"]
    calm = nights_page("fleet", quiet_rows)
    assert '<div class="number calm"><b>0</b><span>real regressions</span>' in calm


def test_a_regression_counts_from_its_first_night_on():
    for network, said in (("slow", "real regression"), ("along", "slower with the machine")):
        first = [row for row in fleet() if row.network == network][:21]
        assert f"<b>1</b><span>{said}" in nights_page("fleet", first)


def test_each_network_has_a_line_of_its_own_and_the_slower_ones_come_first():
    page = nights_page("fleet", fleet())
    words = Words(page)
    assert words.text.index("slow board") < words.text.index("along board")
    assert words.text.index("along board") < words.text.index("<same> board")
    assert page.count('class="spark"') == 3 and page.count('class="curve"') == 3
    for line in ("normalised", "absolute", "control network"):
        assert page.count(f"<title>{line}</title>") == 3
    assert "2026-03-21 , real" in words.text or "2026-03-21, real" in words.text
    assert "2026-03-21, hardware" in words.text


def test_nights_lead_to_their_own_pages():
    found = Words(nights_page("fleet", fleet(), {"2026-03-21"}))
    assert set(found.links) == {"2026-03-21.html"}


def test_networks_without_a_time_and_fleets_without_a_night_have_a_page():
    rows = [replace(row, time_us=None, ratio=None, problem="it does not run")
            for row in quiet(3)]  # fmt: skip
    found = Words(nights_page("fleet", judged(rows)))
    assert "it does not run" in found.text
    assert "Over the nights" not in found.text, "there is no chart to show"
    assert "no night was run yet" in Words(nights_page("fleet", [])).text


def test_a_fleet_of_150_for_a_month_is_a_page_of_a_few_megabytes():
    month = judged(quiet(30))
    rows = [replace(row, network=f"net{i}") for row in month for i in range(150)]
    assert len(nights_page("fleet", rows)) < 4_000_000


CLICKS = """
const table = [...document.querySelectorAll("table")].at(-1);
const first = () => table.tBodies[0].rows[0].cells[0].textContent.trim();
const head = table.tHead.rows[0].cells[0];
head.click();
told.push(first());
head.click();
told.push(first());
document.querySelectorAll("th, a").forEach((each) =>
  each.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true })));
told.push(Math.max(...[...document.querySelectorAll("tbody tr")].map((row) => row.offsetHeight)));
"""


@pytest.mark.slow
@pytest.mark.process
@needs_chromium
@pytest.mark.parametrize("width", [390, 1400])
def test_a_browser_sorts_nights_by_their_dates(width: int, tmp_path: Path):
    down, up, height, fits, errors = told(nights_page("lab", fleet()), CLICKS, width, tmp_path)
    assert {down, up} == {"2026-03-01", "2026-03-30"}
    assert int(height) < 100, "rows are not drawn out by a narrow column of words"
    assert (fits, errors) == ("true", "none")
