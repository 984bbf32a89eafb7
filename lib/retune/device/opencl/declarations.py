"""PoCL's declarations of OpenCL functions, reduced to those that a program uses.

PoCL's compiler reads a megabyte of declarations before each program: a tenth of a second, as long
as the rest of its front end, linking and code generation of a convolution together. Here a program
brings along the ones that it names, taken word for word from PoCL's own header with all their
overloads and conditions, and the header's include guard keeps the rest out.
"""

import functools
import re
from importlib.util import find_spec
from pathlib import Path

from retune.device.opencl import vectors

DRIVER = "3.0-rc2"
"""Version of the PoCL whose header this is: the one that comes with pyopencl."""

_GUARD = "_OPENCL_H_"
SKIP_HEADER = f"-D{_GUARD}"
"""Build option under which PoCL's header is empty."""

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_STATEMENT = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*|[^;#]+;", re.MULTILINE)
"""A preprocessor line with its continuations, or a declaration."""
_DECLARED = re.compile(r"(\w+)\s*\(")
_WORD = re.compile(r"\w+")


def find_header() -> Path | None:
    """The header of the PoCL that comes with pyopencl; None if that is not installed."""
    found = find_spec("pocl_binary_distribution")
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent / ".libs" / "share" / "pocl" / "include" / "opencl-c.h"
    return path if path.exists() else None


def abridged(text: str, header: Path) -> str:
    """The program after the declarations that it needs; compile it with SKIP_HEADER.

    Functions that `vectors` defines are defined so, and not declared.

    A function that only a macro of the text's own joins together from pieces is not found: such a
    program does not compile this way.
    """
    statements, common = _parse(header)
    words = vectors.words_of(text)
    wanted = (common | words) - vectors.NAMES
    kept = [line for name, line in statements if name is None or name in wanted]
    own = vectors.definitions(words)
    return "\n".join([f"#undef {_GUARD}", *kept, *own, "#line 1", text])


@functools.cache
def _parse(header: Path) -> tuple[list[tuple[str | None, str]], frozenset[str]]:
    """Each statement with the function that it declares, and the words that its macros use."""
    text = _COMMENT.sub(" ", header.read_text(encoding="utf-8"))
    statements: list[tuple[str | None, str]] = []
    common: set[str] = set()
    for match in _STATEMENT.finditer(text):
        line = match.group().strip()
        if line.startswith("#include"):
            continue  # of types, which PoCL includes itself
        declared = None if line.startswith("#") else _DECLARED.search(line)
        statements.append((declared.group(1) if declared else None, line))
        if line.startswith("#define"):
            common.update(_WORD.findall(line))
    return statements, frozenset(common)
