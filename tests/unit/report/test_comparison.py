"""Reports carry their data, and two of them are compared."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from retune.core.errors import InputError, RecordError
from retune.report.comparison import compared
from retune.report.html import render
from retune.report.stored import read_report
from tests.support.sample import detailed, sample


def test_a_report_has_its_data_and_is_made_again(tmp_path: Path):
    data = detailed(sample())
    page = render(data)
    (tmp_path / "report.html").write_text(page, encoding="utf-8")
    again = read_report(tmp_path / "report.html")
    assert again == data
    shown = page.partition("</script>")[2]
    assert render(again).partition("</script>")[2] == shown


@pytest.mark.parametrize(
    ("page", "error", "said"),
    [
        (None, InputError, "got no such file"),
        ("<html></html>", InputError, "earlier versions of retune"),
        ('<script type="application/x-retune-report">AAAA</script>', RecordError, "damaged"),
        ('<script type="application/x-retune-report">eJwDAAAAAAE=</script>', RecordError, "JSON"),
    ],
)
def test_a_file_that_has_no_data_is_refused(
    page: str | None, error: type[Exception], said: str, tmp_path: Path
):
    file = tmp_path / "report.html"
    if page is not None:
        file.write_text(page, encoding="utf-8")
    with pytest.raises(error, match=said):
        read_report(file)


def test_layers_are_compared_by_what_they_compute():
    now, before = detailed(sample(tasks=4), 0.5), detailed(sample(tasks=3))
    found = {layer.name: layer for layer in compared(now, before).layers}
    names = [task.entry.name for task in now.tasks]
    assert found[names[0]].verdict == "faster"
    assert found[names[0]].ratio == pytest.approx(0.5)
    assert found[names[0]].saved_us > 0
    assert found[names[2]].verdict == "not timed", "the last task of `before` never succeeded"
    assert found[names[3]].verdict == "only here"
    timed = {detail.task_key: detail.measured_us for detail in now.details}
    assert found[names[3]].us == timed[now.tasks[3].entry.key], "in the bundle, as it has a time"
    assert compared(before, now).layers[-1].verdict == "only in the other"
    slower = detailed(sample(tasks=4), 2.0)
    assert {layer.verdict for layer in compared(slower, now).layers[:3]} == {"slower"}


def test_a_comparison_shows_what_differs_and_says_how_it_was_measured():
    now, before = detailed(sample()), detailed(sample())
    before = replace(before, facts=(("model", "light:squeezenet"), ("seed", "7")))
    found = compared(now, before)
    assert ("seed", "0", "7") in found.facts
    assert "model" not in [name for name, _, _ in found.facts]
    page = render(now, before)
    assert "measured in different runs" in page
    assert "<td>seed</td><td>0</td><td>7</td>" in page


def test_layers_show_nodes_kernels_and_what_was_tried():
    page = render(detailed(sample(tasks=2)))
    assert "Conv &lt;first&gt;, Relu second" in page
    assert "if (a &lt; b) x += y;" in page
    assert "s.split(...)" in page
    assert re.search(r'cpu\.tiles</td><td class="n">9</td><td class="n bad">2<', page)
    assert page.count('class="scatter"') == 1, "a profile without bytes has no roofline"
