"""The ONNX node tests of ops that the importer knows itself, through generated OpenCL kernels.

The gate runs one of each operator, chosen by a seed; all of them are slow for what they add to the
numpy meaning of each (`test_onnx_numpy`).
"""

import numpy as np
import pytest

from retune.core.errors import InputError
from tests.external.cases import CASES, check, has_own_ops
from tests.external.exclusions import exclusion_of
from tests.external.on_device import run_on_device

pytestmark = pytest.mark.device

OPS = [name for name in CASES if has_own_ops(name)]
RUN = [name for name in OPS if not exclusion_of(name)]


def by_operator() -> dict[str, list[str]]:
    """The cases that run, by the operator of their last node."""
    found: dict[str, list[str]] = {}
    for name in RUN:
        found.setdefault(CASES[name].model.graph.node[-1].op_type, []).append(name)
    return found


OPERATORS = by_operator()


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_case_of_each_operator(operator: str, seed: int, rng: np.random.Generator):
    name = str(rng.choice(OPERATORS[operator]))
    print(f"RETUNE_SEED={seed} chooses {name}")
    check(name, run_on_device)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_on_device(name: str):
    check(name, run_on_device)


REFUSED = [name for name in OPS if (found := exclusion_of(name)) and not found.differs]


@pytest.mark.parametrize("name", REFUSED)
def test_excluded(name: str):
    with pytest.raises(InputError):
        check(name, run_on_device)
