"""The ten packed convolutions of ResNet-18 on the simulated VTA accelerator, against a Pynq board.

python -m benchmarks.vta --trials 1000 --out build/vta
"""

from collections.abc import Mapping
from pathlib import Path
from time import process_time

import numpy as np

from benchmarks.command import parser_of
from retune.ir.interp import run_dag
from retune.report.vta import Layer, as_file, queue_chart, roofline_chart
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.expression import expression
from retune.targets.vta.functional import execute
from retune.targets.vta.lower import lower
from retune.targets.vta.space import space_of
from retune.targets.vta.timing import ModuleTiming, simulate
from retune.targets.vta.workload import OUTPUT, Convolution, requantized

_SHARE = 0.7
"""Of the peak, for windows of 3x3."""

LAYERS: tuple[tuple[Convolution, float], ...] = tuple(
    (
        Convolution(
            c=c, h=size, w=size, o=o, kernel=(k, k), strides=(s, s),
            padding=(k // 2, k // 2, k // 2, k // 2), steps=requantized(8, 0, 127),
            name=f"{16 * c}x{size}x{size} to {16 * o}, {k}x{k}/{s}",
        ),
        pynq,
    )
    for c, size, o, k, s, pynq in (
        (16, 14, 32, 1, 2, 6.32), (8, 28, 16, 1, 2, 3.99), (4, 56, 8, 1, 2, 2.18),
        (4, 56, 4, 3, 1, 15.27), (8, 28, 8, 3, 1, 22.74), (4, 56, 8, 3, 2, 15.15),
        (16, 14, 16, 3, 1, 31.26), (8, 28, 16, 3, 2, 22.97), (32, 7, 32, 3, 1, 27.69),
        (16, 14, 32, 3, 2, 23.24),
    )
)  # fmt: skip
"""Layers, and GOPS of the best of up to 1,000 random trials on a Pynq board at 100 MHz.

Source: tuning logs of Apache TVM's tutorial on tuning for VTA.
"""


def main() -> None:
    """Prints a line for each layer; with --out, modules and pictures lie there."""
    parser = parser_of(__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layer", type=int, help="one of them alone, from 0")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    config = VtaConfig()
    print(f"{config.name}, {config.peak_gops:g} GOPS; random candidates, each one bit-exact")
    print(f"{'layer':24} {'space':>6} {'trials':>6} {'GOPS':>6} {'peak':>5} {'Pynq':>6} "
          f"{'enough':>6} {'lower':>7} {'time':>7} {'run':>7} {'all':>6}")  # fmt: skip
    chosen = LAYERS if options.layer is None else (LAYERS[options.layer],)
    best = [_tuned(work, pynq, config, options.trials, options.seed) for work, pynq in chosen]
    if options.out is not None:
        _write(options.out, best, config)


def _tuned(
    work: Convolution, pynq: float, config: VtaConfig, trials: int, seed: int
) -> ModuleTiming:
    """The best of random candidates without repetition; its line is printed."""
    rng = np.random.default_rng(seed)
    space = space_of(work, config)
    everyone = space.everyone()
    arrays = _arrays(work, config, rng)
    expected = run_dag(expression(work, config), arrays)[OUTPUT]
    best: ModuleTiming | None = None
    spent = np.zeros(3)
    slowest = np.zeros(3)
    numbers = rng.permutation(len(everyone))[:trials].tolist()
    for number in numbers:
        clock = [process_time()]
        module = lower(work, dict(space.candidate(everyone, number).decisions), config)
        clock.append(process_time())
        timing = simulate(module)
        clock.append(process_time())
        found = execute(module, arrays, timing.course)[OUTPUT]
        clock.append(process_time())
        spent += np.diff(clock)
        slowest = np.maximum(slowest, np.diff(clock))
        if not np.array_equal(found, expected):
            raise SystemExit(f"{work.name}: candidate {number} is wrong")
        if best is None or timing.cycles < best.cycles:
            best = timing
    assert best is not None
    needed = max(pynq, _SHARE * config.peak_gops if work.kernel == (3, 3) else 0.0)
    lowering, simulating, running = 1e3 * slowest
    print(f"{work.name:24} {len(everyone):6} {len(numbers):6} {best.gops:6.2f} "
          f"{best.gops / config.peak_gops:5.0%} {pynq:6.2f} "
          f"{'yes' if best.gops >= needed else 'NO':>6} {lowering:4.0f} ms {simulating:4.0f} ms "
          f"{running:4.0f} ms {spent.sum():4.0f} s")  # fmt: skip
    return best


def _arrays(
    work: Convolution, config: VtaConfig, rng: np.random.Generator
) -> Mapping[str, np.ndarray]:
    shapes = work.shapes(config).items()
    return {n: rng.integers(-128, 128, s).astype(d) for n, (s, d) in shapes if n != OUTPUT}


def _write(folder: Path, best: list[ModuleTiming], config: VtaConfig) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, timing in enumerate(best):
        timing.module.save(folder / f"layer{number}.npz")
        (folder / f"layer{number}.svg").write_text(as_file(queue_chart(timing)), encoding="utf-8")
    chart = roofline_chart([Layer.of(timing) for timing in best], config)
    (folder / "roofline.svg").write_text(as_file(chart), encoding="utf-8")


if __name__ == "__main__":
    main()
