"""Names of the generated C: one for each buffer, register and loop, and fresh ones for values."""

from retune.codegen import opencl


class Identifiers:
    """Names in one kernel: no two alike, none a word of OpenCL C, the same in every run."""

    def __init__(self) -> None:
        self._taken: set[str] = set(opencl.RESERVED)
        self._counts: dict[str, int] = {}
        self._given: dict[tuple[str, int | None], str] = {}

    def of(self, name: str, part: int | None = None) -> str:
        """The identifier of a buffer or loop, or of a numbered part of one; always the same."""
        key = (name, part)
        if key not in self._given:
            stem = opencl.identifier(name)
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
