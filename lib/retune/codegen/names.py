"""Names of a kernel: one for each buffer, register and loop, and fresh ones for values."""

from collections.abc import Collection
from functools import lru_cache


@lru_cache(maxsize=1024)
def identifier(name: str) -> str:
    """The name in the letters that languages allow; `Identifiers` keeps such names apart."""
    text = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
    return text if text[:1].isalpha() else f"v{text}"


class Identifiers:
    """Names in one kernel: no two alike, none a reserved word, the same in every run."""

    def __init__(self, reserved: Collection[str]) -> None:
        self._taken: set[str] = set(reserved)
        self._counts: dict[str, int] = {}
        self._given: dict[tuple[str, int | None], str] = {}

    def of(self, name: str, part: int | None = None) -> str:
        """The identifier of a buffer or loop, or of a numbered part of one; always the same."""
        key = (name, part)
        if key not in self._given:
            stem = identifier(name)
            self._given[key] = self.fresh(stem if part is None else f"{stem}_{part}")
        return self._given[key]

    def fresh(self, stem: str) -> str:
        """An unused identifier: the stem, or else `stem_1`, `stem_2`, ..."""
        name = stem
        while name in self._taken:
            self._counts[stem] = self._counts.get(stem, 0) + 1
            name = f"{stem}_{self._counts[stem]}"
        self._taken.add(name)
        return name
