"""The picture of a plan of layouts, and what the report says of it."""

from dataclasses import replace
from xml.etree import ElementTree as ET

from retune.core.layouts import IOLayouts
from retune.report.data import LayoutStep, ReportLayouts
from retune.report.html import render
from retune.report.layout_picture import layout_chart
from tests.support.sample import sample

NHWC_IO, BLOCKS = IOLayouts(), IOLayouts("NCHW16c", "NCHW16c")
TO_BLOCKS, FROM_BLOCKS = IOLayouts("NHWC", "NCHW16c"), IOLayouts("NCHW16c", "NHWC")
STEPS = (
    LayoutStep(label="a", reads=(), io=NHWC_IO, us=10.0, measured_us=10.5),
    LayoutStep(label="copy", reads=("a",), io=TO_BLOCKS, us=3.0, copy=True),
    LayoutStep(label="b<", reads=("copy",), io=BLOCKS, us=8.0, measured_us=12.0),
    LayoutStep(label="c", reads=("a", "b<"), io=FROM_BLOCKS, us=4.0, measured_us=2.0),
)
LAYOUTS = ReportLayouts(
    summary="2 images not in NHWC",
    totals=(("plan", 25.0, 1), ("NHWC", 30.0, 0)),
    kept="The bundle takes 0.900 of the time in NHWC, in turns.",
    steps=STEPS,
)


def test_kernels_are_squares_and_copies_diamonds_with_their_time():
    root = ET.fromstring(layout_chart(STEPS))
    titles = [t.text or "" for t in root.iter("title")]
    assert len(titles) == len(STEPS) and any(text.startswith("b<: NCHW16c") for text in titles)
    assert len(list(root.iter("polygon"))) == 1
    assert len(list(root.iter("line"))) == 4  # one for each pair of steps with data between them
    words = [t.text for t in root.iter("text")]
    assert words == ["NHWC", "NCHW16c", "3 µs"]


def test_a_long_network_goes_on_below():
    long = [LayoutStep(label=str(n), reads=(str(n - 1),), io=NHWC_IO, us=1.0) for n in range(60)]
    root = ET.fromstring(layout_chart(long))
    squares = [r for r in root.iter("rect") if r.find("title") is not None]
    assert len({(r.get("x"), r.get("y")) for r in squares}) == 60
    assert len({r.get("y") for r in squares}) == 3
    assert sum(line.get("stroke-dasharray") is not None for line in root.iter("line")) == 2
    assert layout_chart(()) == ""


def test_the_report_names_what_was_not_expected():
    page = render(replace(sample(), layouts=LAYOUTS))
    assert "2 images not in NHWC" in page and "1.200 ×" in page
    assert "<td>b&lt;</td>" in page and "<td>c</td>" in page
    assert "<td>a</td>" not in page  # within a tenth
    assert "<h2>Layouts</h2>" not in render(sample())
