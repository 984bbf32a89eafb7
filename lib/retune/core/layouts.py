"""How the values between convolutions lie, by the names that users choose from."""

from typing import Literal, get_args

Layout = Literal["auto", "NHWC", "NCHW", "NCHW16c"]
"""What measuring finds for each image; or all of them as pixels of all channels, planes of one
channel, or planes of pixels of 16 channels."""
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
ROWS = "rows"
"""How data lie that lie as they are written down, the last axis side by side."""
BLOCKS = "NCHW16c"
"""The layout of blocks that can be asked for by name."""
MEASURED = "auto"
"""The layout that stands for a choice."""
SOLVER_REMOVED = (
    "there is one solver, which finds the layouts that take the least time; leave the option out"
)
"""What is said where someone names a solver, as earlier versions had several."""
