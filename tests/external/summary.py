"""What a test run says at its end of the ONNX node tests: how many passed, what is excluded."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from tests.external.exclusions import exclusion_of

_NODE = re.compile(r"external/test_onnx_(?:ops|functions)\.py::(test_\w+)\[(\w+)\]$")


def summary_lines(passed: Iterable[str], failed: Iterable[str]) -> Iterator[str]:
    """Lines about the node tests that ran on the device, from the test ids; none if none did."""
    found = [match.groups() for node in passed if (match := _NODE.search(node))]
    wrong = sum(1 for node in failed if _NODE.search(node))
    if not found and not wrong:
        return
    good = sum(1 for test, _ in found if test != "test_excluded")
    reasons = Counter(
        entry.reason
        for test, name in found
        if test == "test_excluded" and (entry := exclusion_of(name))
    )
    yield (
        f"ONNX node tests through OpenCL kernels: {good} passed, {wrong} failed, "
        f"{reasons.total()} excluded"
    )
    for reason, count in reasons.most_common():
        yield f"{count:5} excluded: {reason}"
