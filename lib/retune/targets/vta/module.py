"""A kernel for the accelerator: instructions, micro-ops, and the buffers of DRAM that it works on.

Read `VtaModule`. A file of one is an `.npz` of plain arrays with a header in JSON; loading it
executes nothing.
"""

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Literal, cast

import numpy as np

from retune.core.dtypes import DType
from retune.core.errors import InputError, RecordError, refuse_newer
from retune.core.files import check_file
from retune.core.keys import content_key
from retune.core.replacing import replacing
from retune.core.schema import from_json, to_json
from retune.targets.vta.config import DRAM_BITS, VtaConfig
from retune.targets.vta.isa import MEMORIES, MEMORY_TYPES, decode, decode_uops, encode

FORMAT_VERSION = 1
"""Raised when an older program could misread what this one writes."""

Memory = Literal["uop", "wgt", "inp", "acc", "out", "acc8"]

ALIGNMENT = 4096
"""Bytes; buffers begin at multiples of it, and of the size of their elements."""

UOPS = "uops"
"""Name of the buffer of micro-ops."""

_MAGIC = b"PK"
"""What an .npz begins with; numpy takes other files for something else, and says so."""
_PARTS = ("header", "words", "uops")
_NO_MODULE = (
    *(OSError, ValueError, TypeError, KeyError, EOFError, MemoryError),
    *(zipfile.BadZipFile, NotImplementedError, RuntimeError),
)
"""What numpy and zipfile raise for other files: encrypted ones, and those that lie of sizes."""
_MOST_SHOWN = 200
"""Characters of what is quoted."""


def element_bytes(memory: str, config: VtaConfig) -> int:
    """Bytes of an element of that memory type as it lies in DRAM."""
    return int(getattr(config, f"{MEMORY_TYPES[MEMORIES.index(memory)].element}_bytes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DramBuffer:
    """An array in DRAM."""

    name: str
    memory: Memory
    """What it is loaded to, or stored from."""
    offset: int
    """Of its first element, in elements of its memory."""
    elements: int
    shape: tuple[int, ...]
    """Of the array, in numbers."""

    @property
    def memory_type(self) -> int:
        """The number of its memory."""
        return MEMORIES.index(self.memory)

    @property
    def dtype(self) -> DType:
        """Type of its numbers."""
        return MEMORY_TYPES[self.memory_type].dtype

    @property
    def written(self) -> bool:
        """Whether it is a result."""
        return self.memory == "out"


@dataclass(frozen=True, eq=False, kw_only=True)
class VtaModule:
    """A kernel. Equal contents have equal keys."""

    name: str
    config: VtaConfig
    words: np.ndarray
    """uint64 [instructions, 2], see `isa.encode`."""
    uops: np.ndarray
    """uint32 [micro-ops], see `isa.encode_uops`: what the buffer `uops` holds."""
    buffers: tuple[DramBuffer, ...]
    macs: int = 0
    """Multiply-adds of what it computes; 0 if unknown."""

    @staticmethod
    def of(
        instructions: np.ndarray,
        *,
        name: str,
        config: VtaConfig,
        uops: np.ndarray,
        buffers: tuple[DramBuffer, ...],
        macs: int,
    ) -> "VtaModule":
        """The module of these instructions, isa.INSTRUCTION [n], which need not be decoded again.

        Raises: InputError naming the first one with a value that its field cannot hold.
        """
        words = encode(instructions, config)
        made = VtaModule(
            name=name, config=config, words=words, uops=uops, buffers=buffers, macs=macs
        )
        made.__dict__["instructions"] = instructions
        return made

    @cached_property
    def instructions(self) -> np.ndarray:
        """The instructions by fields. isa.INSTRUCTION [n]"""
        return decode(self.words, self.config)

    @cached_property
    def micro_ops(self) -> np.ndarray:
        """The micro-ops by fields. isa.MICRO_OP [n]"""
        return decode_uops(self.uops, self.config)

    @cached_property
    def key(self) -> str:
        """Equal for modules that do the same; names do not count."""
        buffers = [(b.memory, b.offset, b.elements, b.shape) for b in self.buffers]
        return content_key(self.config.to_dict(), self.words, self.uops, buffers)

    def buffer(self, name: str) -> DramBuffer:
        """The buffer of that name."""
        return next(buffer for buffer in self.buffers if buffer.name == name)

    @property
    def inputs(self) -> tuple[DramBuffer, ...]:
        """What the caller provides."""
        return tuple(b for b in self.buffers if not b.written and b.memory != "uop")

    @property
    def outputs(self) -> tuple[DramBuffer, ...]:
        """What it writes."""
        return tuple(b for b in self.buffers if b.written)

    def to_bytes(self) -> bytes:
        """The content of a file of it; equal modules give equal bytes."""
        header = _Header(
            version=FORMAT_VERSION,
            name=self.name,
            config=json.dumps(self.config.to_dict()),
            buffers=self.buffers,
            macs=self.macs,
        )
        text = np.frombuffer(to_json(header).encode(), np.uint8)
        stream = io.BytesIO()
        np.savez(stream, header=text, words=self.words, uops=self.uops)
        return stream.getvalue()

    @staticmethod
    def from_bytes(content: bytes, where: str = "VTA module") -> "VtaModule":
        """The inverse of `to_bytes`. Raises: RecordError if it is damaged, or of a newer format."""
        if not content.startswith(_MAGIC):
            raise RecordError(f"{where}: expected a VTA module (.npz), got other bytes")
        try:
            _check_stored(content)
            with np.load(io.BytesIO(content), allow_pickle=False) as parts:
                header, words, uops = (parts[name] for name in _PARTS)
        except _NO_MODULE as error:
            got = str(error)[:_MOST_SHOWN]
            raise RecordError(f"{where}: expected a VTA module (.npz), got {got}") from error
        if header.dtype != np.uint8:
            raise RecordError(f"{where}: expected a header in bytes, got {header.dtype}")
        made = _from_header(header.tobytes(), where)
        if words.dtype != np.uint64 or words.ndim != 2 or words.shape[1] != 2:
            raise RecordError(f"{where}: expected instructions of two words of 64 bits")
        if uops.dtype != np.uint32 or uops.ndim != 1:
            raise RecordError(f"{where}: expected micro-ops of 32 bits")
        config = _config(made.config, where)
        _check_buffers(made.buffers, len(uops), config, where)
        return VtaModule(
            name=made.name,
            config=config,
            words=words,
            uops=uops,
            buffers=made.buffers,
            macs=made.macs,
        )

    def save(self, path: Path | str) -> Path:
        """`path` is a file of the module, whole. Raises: InputError for a folder without rights."""
        check_file("module", made := Path(path))
        with replacing(made) as stream:
            stream.write(self.to_bytes())
        return made

    @staticmethod
    def load(path: Path | str) -> "VtaModule":
        """The module of a file. Raises: RecordError if there is none, or it is damaged."""
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise RecordError(f"{path}: cannot be read: {error.strerror}") from error
        return VtaModule.from_bytes(content, str(path))


def _check_stored(content: bytes) -> None:
    """Nothing in the file is larger than the file. Raises: as zipfile does; ValueError."""
    with zipfile.ZipFile(io.BytesIO(content)) as parts:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in parts.infolist()):
            raise ValueError("arrays that are compressed")


def laid_out(
    arrays: Mapping[str, tuple[Memory, tuple[int, ...]]], config: VtaConfig
) -> tuple[DramBuffer, ...]:
    """Buffers one after the other in DRAM, for arrays with these memories and shapes."""
    made: list[DramBuffer] = []
    at = ALIGNMENT
    for name, (memory, shape) in arrays.items():
        size = element_bytes(memory, config)
        at = _rounded_up(at, size)
        whole = prod(shape) * np.dtype(MEMORY_TYPES[MEMORIES.index(memory)].dtype).itemsize
        assert whole % size == 0, f"{name}: {whole} bytes are not whole elements of {memory}"
        made.append(
            DramBuffer(
                name=name, memory=memory, offset=at // size, elements=whole // size, shape=shape
            )
        )
        at = _rounded_up(at + whole, ALIGNMENT)
    return tuple(made)


def _rounded_up(number: int, to: int) -> int:
    return -(-number // to) * to


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    version: int
    name: str
    config: str
    buffers: tuple[DramBuffer, ...]
    macs: int


def _config(text: str, where: str) -> VtaConfig:
    shown = repr(text[:_MOST_SHOWN])
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{where}: expected a configuration in JSON, got {shown}") from error
    if not isinstance(fields, dict):
        raise RecordError(f"{where}: expected a configuration by fields, got {shown}")
    try:
        return VtaConfig.from_dict(cast("dict[str, object]", fields))
    except InputError as error:
        raise RecordError(f"{where}: {error}") from error


def _check_buffers(buffers: Sequence[DramBuffer], uops: int, config: VtaConfig, where: str) -> None:
    """Raises: RecordError for buffers that no module has."""
    names = [buffer.name for buffer in buffers]
    if len(set(names)) < len(names):
        raise RecordError(f"{where}: expected buffers of different names, got {', '.join(names)}")
    for buffer in buffers:
        expected = buffer.elements * element_bytes(buffer.memory, config)
        got = prod(buffer.shape) * np.dtype(buffer.dtype).itemsize
        if min(buffer.offset, buffer.elements, *buffer.shape) < 0:
            raise RecordError(f"{where}: expected sizes of at least 0, got {buffer}")
        if got != expected:
            raise RecordError(
                f"{where}: expected buffer {buffer.name} to have {buffer.elements} elements of "
                f"{buffer.memory}, {expected} bytes; got shape {list(buffer.shape)}, {got} bytes"
            )
        if buffer.offset + buffer.elements > 1 << DRAM_BITS:
            raise RecordError(
                f"{where}: expected elements of {buffer.name} below 2**{DRAM_BITS}, where "
                f"instructions reach, got {buffer.elements} from {buffer.offset} on"
            )
    stored = [(b.name, b.elements) for b in buffers if b.memory == "uop"]
    if stored != [(UOPS, uops)]:
        raise RecordError(f"{where}: expected one buffer {UOPS} of {uops} micro-ops, got {stored}")


def _from_header(text: bytes, where: str) -> _Header:
    try:
        header = from_json(_Header, text.decode())
    except UnicodeDecodeError as error:
        raise RecordError(f"{where}: expected a header in JSON, got other bytes") from error
    except RecordError as error:
        raise RecordError(f"{where}: {error}") from error
    refuse_newer(where, "a module of format", header.version, FORMAT_VERSION)
    return header
