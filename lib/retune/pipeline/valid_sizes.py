"""Check that a network is valid at every size of a request's ranges. Read `check_every_size`."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from retune.core.dims import Condition, Size, SizeValues, assuming, values_text
from retune.core.errors import ModelError
from retune.frontend.onnx.importer import load_file
from retune.frontend.onnx.inputs import OpenInputs
from retune.pipeline.grid import SizeGrid
from retune.pipeline.request import TuneRequest, model_file
from retune.pipeline.sizes import opened, usual_values

_STEPS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Networks halve extents and join what comes of them: sizes have to be multiples of such."""


def check_every_size(request: TuneRequest) -> None:
    """Raises: ModelError where the network has no meaning at some size of the request's ranges.

    It says so before minutes are spent at sizes that are right. The conditions under which operands
    fit at some sizes say at which others to look.
    """
    usual = usual_values(request)
    if not usual:
        return
    stated, path = opened(request), model_file(request)
    every = [each.size for each in stated.extents]
    fit, grid = _fitting(path, stated, every, usual), SizeGrid(every)
    beyond = (grid.greatest(~grid.meets([condition])) for condition in fit)
    for values in (usual, *filter(None, beyond)):
        own = stated.at(values)
        try:
            load_file(path, own.shapes, own.values)
        except ModelError as error:
            advice = _advice(every, fit)
            raise ModelError(f"at {values_text(values)}: {error}; {advice}") from error


def _fitting(
    path: Path, stated: OpenInputs, every: Sequence[Size], usual: SizeValues
) -> list[Condition]:
    """Under which extents of operands are equal, as they are at the usual sizes, or next to these;
    none where they are not equal there either."""
    for step in _STEPS:
        at = {s.name: max(s.least, usual[s.name] // step * step) for s in every}
        with suppress(ModelError), assuming(at) as assumed:
            load_file(path, stated.shapes, stated.values)
            return [c for c in assumed.conditions if c.relation == "eq" and c.holds]
    return []


def _advice(every: Sequence[Size], fit: Sequence[Condition]) -> str:
    """Advice on ranges: the least steps at which all operands fit."""
    named = {size.name for condition in fit for size in condition.dim.sizes}
    halved, rest = [s for s in every if s.name in named], [s for s in every if s.name not in named]
    for step in _STEPS[1:] if fit else ():
        least = [-(-size.least // step) * step for size in halved]
        if any(low > size.most for low, size in zip(least, halved, strict=True)):
            break
        stepped = [replace(s, least=n, step=step) for n, s in zip(least, halved, strict=True)]
        if SizeGrid([*stepped, *rest]).meets(fit).all():
            ranges = (f"{s.least}..{s.most}:{step} for {s.name}" for s in stepped)
            return f"give steps of {step}: {', '.join(ranges)}"
    return "give single extents, or a narrower range"
