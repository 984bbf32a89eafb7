"""What the closed form takes candidates for is near what the simulator counts."""

from dataclasses import replace

import numpy as np
import pytest

from retune.core.dtypes import INT8
from retune.core.target import GENERIC_CPU
from retune.schedule.space import Space
from retune.targets.cost.estimate import default_candidate, estimate
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.lower import lower
from retune.targets.vta.space import space_of
from retune.targets.vta.template import ORDER
from retune.targets.vta.timing import simulate
from retune.targets.vta.workload import Convolution, Operand, Step, requantized
from tests.support.vta_reference import dense

CONFIG = VtaConfig()
BIAS, OTHER = Operand(name="bias", reach="channel"), Operand(name="o", reach="image", dtype=INT8)
STEPS = (Step(op="add", operand="bias"), *requantized(8))
LAYER = Convolution(
    c=8, h=28, w=28, o=8, kernel=(3, 3), padding=(1, 1, 1, 1), steps=STEPS, operands=(BIAS,)
)
LAYERS = {
    "3x3": LAYER,
    "sum": replace(LAYER, steps=(*STEPS, Step(op="add", operand="o")), operands=(BIAS, OTHER)),
    "1x1": replace(LAYER, kernel=(1, 1), padding=(0,) * 4, strides=(2, 2)),
    "up": replace(LAYER, h=8, w=8, kernel=(4, 4), strides=(2, 2), transposed=True),
    "dense": dense(c=32, o=64, steps=STEPS, operands=(BIAS,)),
}


def counted(work: Convolution, space: Space, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Cycles of some candidates of every sketch: by the closed form, and by the simulator."""
    rng = np.random.default_rng(3)
    taken: list[np.ndarray] = []
    real: list[int] = []
    for number, sketch in enumerate(space.sketches):
        rows = sketch.sample(count, rng)
        taken.append(estimate(sketch, rows, GENERIC_CPU))
        chosen = space.population(number, rows)
        for i in range(len(rows)):
            decided = dict(space.candidate(chosen, i).decisions)
            real.append(simulate(lower(work, decided, CONFIG)).cycles)
    return np.concatenate(taken), np.asarray(real, np.float64)


@pytest.mark.parametrize("name", LAYERS)
def test_candidates_are_ranked_as_by_the_simulator(name: str):
    work = LAYERS[name]
    space = space_of(work, CONFIG)
    taken, real = counted(work, space, 24)
    assert 0.9 < np.median(taken / real) < 1.1
    assert np.corrcoef(np.log(taken), np.log(real))[0, 1] > 0.9
    default = dict(default_candidate(space, GENERIC_CPU).decisions)
    assert simulate(lower(work, default, CONFIG)).cycles < 1.1 * real.min()


def test_what_a_buffer_holds_already_is_not_counted_again():
    """All input channels at once: the order decides how often each operand is loaded."""
    work = LAYERS["1x1"]
    decided = {"tile_b": (1,), "tile_h": (2,), "tile_w": (7,), "tile_ci": (8,), "tile_co": (1,),
               "oc_nthread": (1,), "h_nthread": (1,)}  # fmt: skip
    found: dict[str, tuple[float, int]] = {}
    for sketch in space_of(work, CONFIG).sketches:
        order = {d.name: (int(d.table[0, 0]),) for d in sketch.decisions if d.name == ORDER}
        row = sketch.row({**decided, **order})
        real = simulate(lower(work, {**decided, **order}, CONFIG)).cycles
        found[sketch.name] = float(estimate(sketch, row[None], GENERIC_CPU)[0]), real
    assert len({real for _, real in found.values()}) == len(found) == 3
    for taken, real in found.values():
        assert taken == pytest.approx(real, rel=0.1)
