"""The names of the kernels in a program's text.

They are not asked of the driver: NVIDIA's (580) writes beyond the end of its memory where the names
of a program take more than 8 KiB together, as those of a network of 134 kernels did.
"""

import re

_ENTRY_POINT = re.compile(
    r"\b(?:__)?kernel\b(?:\s+__attribute__\s*\(\(.*?\)\))*\s+void\s+(\w+)\s*\("
)


def entry_points(text: str) -> list[str]:
    """The kernels that the text defines, in order."""
    return _ENTRY_POINT.findall(text)
