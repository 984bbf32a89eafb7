"""The ONNX node tests by the numpy meaning of the graph's ops, and the table of exclusions.

Quick, and first to look at: what fails here is the import's or the op's fault, not a kernel's.
"""

import re

import pytest

from retune.core.errors import ModelError
from retune.graph.evaluate import run_graph
from tests.external.cases import CASES, check
from tests.external.exclusions import EXCLUDED, exclusion_of

EXCLUSIONS = {name: found for name in CASES if (found := exclusion_of(name))}
REFUSED = [name for name, entry in EXCLUSIONS.items() if not entry.device]


@pytest.mark.parametrize("name", [name for name in CASES if name not in REFUSED])
def test_meaning(name: str):
    check(name, run_graph)


@pytest.mark.parametrize("name", REFUSED)
def test_excluded(name: str):
    with pytest.raises(AssertionError if EXCLUSIONS[name].differs else ModelError):
        check(name, run_graph)


def test_most_of_the_suite_runs():
    assert len(CASES) - len(EXCLUSIONS) >= 500


@pytest.mark.parametrize("entry", EXCLUDED, ids=lambda entry: entry.pattern)
def test_every_exclusion_is_the_reason_of_some_test(entry):
    assert any(re.search(entry.pattern, name) for name in CASES)
    assert entry in EXCLUSIONS.values()
