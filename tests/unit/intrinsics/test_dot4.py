"""Build options follow the ways that programs use, not all that a device offers."""

from dataclasses import replace

import pytest

from retune.codegen.options import BUILD_OPTIONS
from retune.core.target import GENERIC_GPU
from retune.targets.devices import target_of

NEWER = "-cl-std=CL3.0"


@pytest.mark.parametrize(
    ("offered", "added"),
    [
        ((), ()),
        (("dot4.dp4a",), ()),
        (("dot4.packed",), (NEWER,)),  # OpenCL C 1.2 has no such functions
        (("dot4.dp4a", "dot4.packed"), ()),  # dp4a does all that they do
    ],
)
def test_what_opencl_offers_is_asked_for_where_it_is_the_best(offered, added):
    spec = replace(GENERIC_GPU, instructions=offered)
    assert target_of(spec).options == (*BUILD_OPTIONS, *added)
