"""Orders of tiles that keep an operand on chip: they load less, and compute the same."""

from dataclasses import replace

import numpy as np

from retune.targets.spaces import strategy
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.isa import INP, LOAD, WGT
from retune.targets.vta.lower import lower
from retune.targets.vta.module import VtaModule
from retune.targets.vta.space import TEMPLATE, space_of
from retune.targets.vta.template import ORDER, ORDERS
from retune.targets.vta.workload import Convolution, requantized
from tests.support.layers import PLAIN, SMALL
from tests.support.vta_reference import dense

DECIDED = {"tile_b": (1,), "tile_h": (3,), "tile_w": (2,), "tile_ci": (2,), "tile_co": (1,),
           "oc_nthread": (1,), "h_nthread": (1,)}  # fmt: skip


def _loaded(module: VtaModule, memory: int) -> int:
    """Elements that are loaded into a memory, zeros around them left out."""
    mine = module.instructions["opcode"] == LOAD
    mine &= module.instructions["memory_type"] == memory
    return int((module.instructions["y_size"] * module.instructions["x_size"])[mine].sum())


def _in_order(work: Convolution, sketch: str) -> VtaModule:
    (order,) = (d for d in space_of(work, SMALL).sketch(sketch).decisions if d.name == ORDER)
    return lower(work, {**DECIDED, ORDER: (int(order.table[0, 0]),)}, SMALL)


def test_what_stays_is_loaded_once():
    """With all input channels in a tile: every weight, and every input of the tiles' windows."""
    usual = lower(PLAIN, DECIDED, SMALL)
    weights, inputs = (_in_order(PLAIN, f"vta.stay.{name}") for name in ("weights", "inputs"))
    assert _loaded(weights, WGT) == PLAIN.o * PLAIN.c * PLAIN.taps < _loaded(usual, WGT)
    assert _loaded(inputs, INP) * PLAIN.o == _loaded(weights, INP)
    assert _loaded(inputs, INP) < _loaded(usual, INP)


def test_rules_have_no_candidates_that_the_template_has():
    space = space_of(PLAIN, SMALL)
    everyone = space.everyone()
    streams: dict[str, set[bytes]] = {}
    for number in range(len(everyone)):
        candidate = space.candidate(everyone, number)
        words = lower(PLAIN, dict(candidate.decisions), SMALL).words.tobytes()
        streams.setdefault(candidate.sketch, set()).add(words)
    template = streams.pop(TEMPLATE)
    assert set(streams) == {"vta.stay.inputs", "vta.stay.weights"}
    assert all(template.isdisjoint(others) for others in streams.values())


def test_layers_of_one_tile_along_an_axis_have_no_rules():
    work = dense(c=3, o=4, steps=requantized(4))
    assert [sketch.name for sketch in space_of(work, SMALL).sketches] == [TEMPLATE]
    pixels = replace(PLAIN, kernel=(1, 1), padding=(0, 0, 0, 0), h=8, w=8)
    assert len(space_of(pixels, VtaConfig()).sketches) == 3


def test_they_are_no_templates_to_those_who_ask_for_strategies():
    names = [sketch.name for sketch in space_of(PLAIN, SMALL).sketches]
    assert [strategy(name) for name in names] == [f"template {TEMPLATE}", *names[1:]]


def test_the_first_order_is_the_template_s():
    assert ORDERS[0] == ("bo", "i", "co", "j")
    first = lower(PLAIN, {**DECIDED, ORDER: (0,)}, SMALL)
    assert np.array_equal(first.words, lower(PLAIN, DECIDED, SMALL).words)
