"""What tests of conftest share with others."""

from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(eq=False)
class Golden:
    """A stored text; `text == golden` compares, or rewrites the file under --update-golden."""

    path: Path
    update: bool

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return NotImplemented
        if self.update:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(other, encoding="utf-8")
            return True
        return self.text == other

    __hash__ = None  # type: ignore[assignment]

    @property
    def text(self) -> str:
        """The stored text. A missing file fails the test and says how to make it."""
        if not self.path.is_file():
            pytest.fail(f"{self.path} does not exist; create it with: pytest --update-golden")
        return self.path.read_text(encoding="utf-8")

    def __repr__(self) -> str:
        return self.text if self.path.is_file() else f"Golden({self.path})"
