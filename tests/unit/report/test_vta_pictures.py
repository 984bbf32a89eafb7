"""Pictures of the accelerator: what is drawn is what was simulated."""

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from retune.report.vta import LEFT, RIGHT, WIDTH, Layer, as_file, queue_chart, roofline_chart
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.lower import lower
from retune.targets.vta.timing import ModuleTiming, simulate
from tests.support.layers import SMALL, WHOLE
from tests.support.refusals import DECIDED


@pytest.fixture
def timing() -> ModuleTiming:
    return simulate(lower(replace(WHOLE, name="a < b"), DECIDED, SMALL))


def test_queues_are_filled_as_long_as_they_work(timing: ModuleTiming):
    svg = queue_chart(timing)
    ET.fromstring(svg)
    wide = sum(float(w) for w in re.findall(r"h([\d.]+)v26", svg))
    busy = sum(timing.busy.values()) / timing.cycles * (WIDTH - LEFT - RIGHT)
    assert wide == pytest.approx(busy, rel=0.15)
    assert f"{timing.cycles:,} cycles" in svg
    for queue, spent in timing.busy.items():
        assert f">{queue}<" in svg and f">{spent / timing.cycles:.0%}<" in svg


def test_the_roofline_says_what_bounds_each_layer(timing: ModuleTiming):
    config = VtaConfig()
    ridge = config.peak_gops / config.gbytes_per_s
    layers = [
        Layer(name="slow & wide", ops_per_byte=ridge / 2, gops=20.0),
        Layer(name="fast", ops_per_byte=ridge * 2, gops=45.0),
        Layer.of(timing),
    ]
    svg = roofline_chart(layers, config)
    ET.fromstring(svg)
    assert "slow &amp; wide: 20.0 GOPS, 32 operations a byte, memory-bound" in svg
    assert "fast: 45.0 GOPS, 128 operations a byte, compute-bound" in svg
    points = [tuple(map(float, p)) for p in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', svg)]
    assert points[0][0] < points[1][0] and points[0][1] > points[1][1]


def test_numbers_of_layers_that_are_alike_do_not_lie_on_each_other():
    config = VtaConfig()
    layers = [Layer(name=f"n{i}", ops_per_byte=80 + i / 4, gops=48 - i / 3) for i in range(12)]
    svg = roofline_chart(layers, config)
    circles = [tuple(map(float, p)) for p in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', svg)]
    found = re.findall(r'text-anchor="middle" x="([\d.]+)" y="([\d.]+)">(\d+)</text>', svg)
    numbers = [(float(x), float(y) - 3.5) for x, y, _ in found[-12:]]
    assert [int(text) for *_, text in found[-12:]] == list(range(1, 13))
    for i, (x, y) in enumerate(numbers):
        others = [*numbers[:i], *numbers[i + 1 :], *circles]
        assert all(abs(x - a) > 5 or abs(y - b) > 5 for a, b in others), i + 1


def test_steps_of_the_axis_of_cycles_are_round(timing: ModuleTiming):
    marks = re.findall(
        r'text-anchor="middle" x="[\d.]+" y="[\d.]+">([\d,]+)</text>', queue_chart(timing)
    )
    steps = np.diff([int(mark.replace(",", "")) for mark in marks])
    assert 3 <= len(steps) <= 7 and len(set(steps.tolist())) == 1
    assert str(steps[0]).rstrip("0") in "125"


def test_a_file_has_its_styles(timing: ModuleTiming):
    root = ET.fromstring(as_file(queue_chart(timing)))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "--ours" in (root[0].text or "")
