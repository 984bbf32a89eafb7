"""The named parts of a bundle on disk, in a folder or a zip, whatever somebody made of it.

Read `open_parts`. Nothing is unpacked that is larger than what this machine can hold, or than such
a part can be, whatever the zip says of itself. Parts of a folder are views of its files; whether
these stayed as they were is told by `BundleParts.check_unchanged`.
"""

import os
import zipfile
import zlib
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from retune.bundle.weights import map_open_file
from retune.core.errors import RecordError

_MEMORY_SHARE = 0.5
"""What is unpacked takes this part of the machine's memory at most."""
_DIRECTORY_BYTES = 1 << 20
"""The list of what is in a zip: some ten entries, and what others may have put beside them."""
_ENCRYPTED = 1
"""Bit of a zip entry's flags. Source: PKWARE's APPNOTE, 4.4.4."""
_LONGEST_REASON = 200


def machine_bytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def damaged(path: Path, name: str, expected: str, got: str) -> RecordError:
    """What is wrong with a part."""
    return RecordError(
        f"{path}: {name}: expected {expected}; got {got}; copy the whole bundle again"
    )


@contextmanager
def open_parts(path: Path) -> "Generator[BundleParts]":
    """The parts at `path`, for the time of the context. Raises: RecordError if there are none."""
    if path.is_dir():
        with ExitStack() as streams:
            yield _FolderParts(path=path, folder=path.resolve(), streams=streams)
        return
    if not path.is_file():
        raise RecordError(f"{path}: expected a bundle folder or zip; got nothing; check the path")
    try:
        with _ZipFile(path) as stream, zipfile.ZipFile(stream) as archive:
            stream.most = None
            yield _ZipParts(path=path, archive=archive)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, UnicodeDecodeError) as error:
        raise RecordError(
            f"{path}: expected a bundle folder or zip; got a file that is neither, or is damaged "
            f"({_brief(error)}); `retune pack` writes such a zip"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _FolderParts:
    """Those in a folder."""

    path: Path
    folder: Path
    """The same without links."""
    streams: ExitStack
    read_from: dict[str, tuple[BinaryIO, tuple[int, int]]] = field(
        default_factory=dict[str, tuple[BinaryIO, tuple[int, int]]]
    )
    """Part -> its file, and what that was before it was read."""

    def read(self, name: str, limit: int) -> memoryview | None:
        """The part's bytes, at most `limit` + 1 of them, or None if it is missing.

        Raises: RecordError if it cannot be unpacked.
        """
        part = self.folder / name
        if not part.is_file():
            return None
        stream = self.streams.enter_context(part.open("rb"))
        self.read_from[name] = stream, _state(stream)
        return map_open_file(stream)[: limit + 1]

    def check_unchanged(self) -> None:
        """Raises: RecordError if what was read is no longer what it was."""
        for name, (stream, before) in self.read_from.items():
            if _state(stream) != before:
                raise damaged(
                    self.path, name, "a file that stays while it is loaded", "one that was changed"
                )


def _state(stream: BinaryIO) -> tuple[int, int]:
    """Size and time of the last change of the open file, wherever it is now."""
    found = os.fstat(stream.fileno())
    return found.st_size, found.st_mtime_ns


@dataclass(slots=True, kw_only=True)
class _ZipParts:
    """Those in a zip."""

    path: Path
    archive: zipfile.ZipFile
    left: int = field(default_factory=lambda: int(_MEMORY_SHARE * machine_bytes()))
    """That may still be unpacked."""

    def read(self, name: str, limit: int) -> memoryview | None:
        entries = [entry for entry in self.archive.infolist() if entry.filename == name]
        if not entries:
            return None
        if len(entries) > 1 or entries[0].flag_bits & _ENCRYPTED:
            raise damaged(self.path, name, "one part of that name, not encrypted", "another")
        most = min(limit, self.left)
        try:
            with self.archive.open(entries[0]) as stream:
                data = stream.read(most + 1)
        except (OSError, zlib.error, EOFError, RuntimeError, zipfile.BadZipFile) as error:
            got = f"what cannot be unpacked ({_brief(error)})"
            raise damaged(self.path, name, "a part that can be unpacked", got) from error
        if len(data) > self.left:
            fits = f"at most {self.left} bytes, which this machine has memory for"
            raise damaged(self.path, name, fits, "more")
        self.left -= len(data)
        return memoryview(data)

    def check_unchanged(self) -> None:
        """It was unpacked into memory."""


BundleParts = _FolderParts | _ZipParts
"""The named parts of a bundle."""


class _ZipFile(FileIO):
    """A file whose reads are bounded until `most` is None: zipfile reads directories in one."""

    most: int | None = _DIRECTORY_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        """As of any file."""
        if self.most is None:
            return super().read(-1 if size is None else size) or b""
        wanted = self.most + 1 if size is None or size < 0 else size
        data = super().read(min(wanted, self.most + 1)) or b""
        if len(data) > self.most:
            raise zipfile.BadZipFile(f"a list of files of more than {self.most} bytes")
        return data


def _brief(error: Exception) -> str:
    """zipfile quotes what it found, however long that is."""
    text = str(error)
    return text if len(text) < _LONGEST_REASON else f"{text[:_LONGEST_REASON]}..."
