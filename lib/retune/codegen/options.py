"""Conventions between a kernel's text and the code that builds and launches it.

A bundle's runtime reads this file and nothing that generates code.
"""

from collections.abc import Iterable

BUILD_OPTIONS: tuple[str, ...] = ("-cl-unsafe-math-optimizations",)
"""What compilers may do: reorder, contract and approximate, and all that at no cost in speed.

`-cl-fast-relaxed-math` is this and `-cl-finite-math-only`, with which infinity has no meaning:
PoCL makes `y` of `y + -INFINITY`, as a mask adds it, and 0 of `x - x`. That was no faster.
Source: OpenCL 3.0 API, 5.8.6.4, Optimization Options.
"""

ALLOWED_OPTIONS = frozenset(
    {
        *BUILD_OPTIONS,
        *("-cl-fast-relaxed-math", "-cl-finite-math-only", "-cl-mad-enable"),
        *("-cl-no-signed-zeros", "-cl-denorms-are-zero", "-cl-single-precision-constant"),
        *("-cl-fp32-correctly-rounded-divide-sqrt", "-cl-opt-disable", "-w"),
        *("-cl-std=CL1.1", "-cl-std=CL1.2", "-cl-std=CL2.0", "-cl-std=CL3.0"),
    }
)
"""What a bundle or a job may ask of a compiler: nothing that names files or has side effects."""

LEAST_BASED = 3
"""Parameters of a kernel that is given them as distances from one address, see `ONE_BASE`."""

CHANNELS = 4
"""Floats of a texel, which is what an image is read by."""

_MOST_SHOWN = 200


def unknown_options(options: Iterable[str]) -> str:
    """Those that are not allowed, for a sentence; empty if all are."""
    return ", ".join(sorted({*options} - ALLOWED_OPTIONS))[:_MOST_SHOWN]
