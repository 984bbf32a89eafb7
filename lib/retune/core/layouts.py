"""How the values between convolutions lie, by the names that users choose from."""

from typing import Literal, get_args

LAYOUTS = ("auto", "NHWC", "NCHW", "NCHW16c")
"""What measuring finds for each image; or all of them as pixels of all channels, planes of one
channel, or planes of pixels of 16 channels."""
MEASURED = "auto"
"""The layout that stands for a choice."""

Solver = Literal["auto", "exact", "pbqp", "greedy"]
"""What makes that choice: see `retune.layout.solve`."""
SOLVERS: tuple[Solver, ...] = get_args(Solver)
