"""module.json: a NetworkPlan without its kernel texts, weights and models of host steps.

Read `BundleManifest`, `to_manifest` and `from_manifest`. Unknown fields are ignored, so that an
older program reads what a newer one of the same format version wrote. This file opens no file.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast, get_args

import numpy as np

from retune.bundle.plan import Alias, Engine, Form, NetworkPlan, PlanHost, PlanLoop
from retune.bundle.sizes import PlanSize, PlanVariant, corners
from retune.codegen.source import KernelLaunch, KernelText, ProgramBuffer, Role
from retune.core.dims import (
    Dim,
    Size,
    assuming,
    is_fixed,
    parse_condition,
    parse_dim,
)
from retune.core.errors import RecordError
from retune.core.schema import Count, Meta, Positive, from_plain, plain
from retune.core.states import State
from retune.core.target import DeviceSpec
from retune.ir.storage import AddressDigit, Storage, row_major

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""What a JSON document holds."""

T = TypeVar("T")

Extent: TypeAlias = int | str
"""An extent, or the text of a Dim."""
_EXTENTS = frozenset(
    {"elements", "shape", "global_size", "flops", "bytes", "times"}
    | {"divisor", "extent", "first", "room"}
)
"""Fields that hold extents."""

_TEXT_FIELDS = ("text", "called", "name")
_PROPERTIES = [f.name for f in fields(KernelText) if f.name not in _TEXT_FIELDS]


class Malformed(RecordError):
    """A manifest lacks a field, or a field has the wrong type; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    offset: Extent
    width: Extent


@dataclass(frozen=True, slots=True, kw_only=True)
class _Digit:
    dim: int
    divisor: Extent
    extent: Extent
    first: Extent
    room: Extent


@dataclass(frozen=True, slots=True, kw_only=True)
class _BufferEntry:
    name: str
    dtype: str
    elements: Extent
    role: Role
    shape: tuple[Extent, ...] = ()
    image: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _LaunchEntry:
    kernel: str
    args: tuple[str, ...]
    global_size: tuple[Extent, ...]
    local_size: tuple[int, ...]
    label: str = ""
    flops: Extent
    bytes: Extent
    writes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoopEntry:
    first: Count
    end: Count
    times: Extent


@dataclass(frozen=True, slots=True, kw_only=True)
class _SizeEntry:
    name: str
    least: Count
    most: Count
    step: Positive = 1
    buffer: str
    input: str
    axis: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _VariantEntry:
    conditions: tuple[str, ...]
    first: Count
    end: Count
    first_host: Count
    end_host: Count
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _AliasEntry:
    value: str
    of: str
    columns: _Columns | None = None
    """Of an alias that lies in columns of rows."""
    parts: tuple[_Digit, ...] | None = None
    """Of one that lies in another way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostEntry:
    label: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    after: int
    ops: tuple[str, ...] = ()
    """For people."""
    engine: Engine = "onnx"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Where the text of some kernels lies in the file of all texts."""

    first: Count
    bytes: Count
    entries: tuple[str, ...] = ()


Algorithm = Literal["sha256", "blake2b"]
"""By which the content of a part is hashed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """Size and hash of a part of the bundle."""

    bytes: Count
    blake2b: str
    sha256: str = ""
    """Of bundles from before it was written: none."""

    @property
    def algorithm(self) -> Algorithm:
        """The one by which the part is checked."""
        return "sha256" if self.sha256 else "blake2b"

    @property
    def digest(self) -> str:
        """The hash by that algorithm, in hexadecimal."""
        return self.sha256 or self.blake2b


@dataclass(frozen=True, slots=True, kw_only=True)
class _Properties:
    """The properties of a kernel, see KernelText."""

    single_item: bool
    images: tuple[int, ...]
    arena_bytes: int | None
    intrinsics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleManifest:
    """All fields of module.json but its format and its key."""

    name: str
    model_key: str
    target: DeviceSpec
    options: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    buffers: tuple[_BufferEntry, ...]
    aliases: tuple[_AliasEntry, ...]
    launches: tuple[_LaunchEntry, ...]
    notes: Mapping[str, str]
    kernels: tuple[Piece, ...] = ()
    files: Mapping[str, FileFacts] = field(default_factory=dict[str, FileFacts])
    hosts: tuple[_HostEntry, ...] = ()
    loops: tuple[_LoopEntry, ...] = ()
    form: Annotated[str, Meta(max_length=80)] = "persistent"
    """Bundles from before there were others have none; a form to come is as good as none."""
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    """Of bundles from before they were known: none."""
    indices: Mapping[str, Extent] = field(default_factory=dict[str, Extent])
    least: Mapping[str, int] = field(default_factory=dict[str, int])
    properties: Mapping[str, _Properties] = field(default_factory=dict[str, _Properties])
    """By kernel; bundles from before they were stated have none."""
    sizes: tuple[_SizeEntry, ...] = ()
    values: Mapping[str, tuple[Extent, ...]] = field(default_factory=dict[str, tuple[Extent, ...]])
    variants: tuple[_VariantEntry, ...] = ()
    states: tuple[State, ...] = ()


def to_manifest(plan: NetworkPlan) -> dict[str, Json]:
    """The plan's structure as JSON values; texts, weights and models lie in files of their own."""
    with assuming(plan.largest):
        return cast("dict[str, Json]", plain(_stated(plan)))


def _stated(plan: NetworkPlan) -> dict[str, object]:
    return {
        "name": plan.name,
        "model_key": plan.model_key,
        "target": plan.device.lasting,
        "fingerprint": plan.device.fingerprint,
        "options": plan.options,
        "inputs": plan.inputs,
        "outputs": plan.outputs,
        "buffers": [_without(_as(_BufferEntry, b), image=0) for b in plan.buffers],
        "aliases": [_without(_alias_entry(a), columns=None, parts=None) for a in plan.aliases],
        "launches": [_as(_LaunchEntry, launch) for launch in plan.launches],
        "hosts": [_without(_host_entry(host), engine="onnx") for host in plan.hosts],
        **({"loops": [_as(_LoopEntry, loop) for loop in plan.loops]} if plan.loops else {}),
        "notes": dict(plan.notes),
        "form": plan.form,
        "counts": dict(plan.counts),
        **({"indices": {n: _written(e) for n, e in plan.indices.items()}} if plan.indices else {}),
        **({"least": dict(plan.least)} if plan.least else {}),
        "properties": {
            kernel.name: {name: getattr(kernel, name) for name in _PROPERTIES}
            for kernel in plan.kernels
        },
        **({"sizes": [_size_entry(each) for each in plan.sizes]} if plan.sizes else {}),
        **({"values": {n: _written(row) for n, row in plan.values.items()}} if plan.values else {}),
        **({"variants": [_variant_entry(v) for v in plan.variants]} if plan.variants else {}),
        **({"states": [_without(each, axis=None) for each in plan.states]} if plan.states else {}),
    }


def read_manifest(values: Mapping[str, Json]) -> BundleManifest:
    """The manifest of these JSON values. Raises: Malformed."""
    return from_plain(BundleManifest, values, where="module.json", error=Malformed)


def from_manifest(
    manifest: BundleManifest,
    texts: Mapping[str, str],
    weights: Mapping[str, np.ndarray],
    models: Sequence[bytes] = (),
) -> NetworkPlan:
    """The plan that `to_manifest` was given, with these texts, weights and models of host steps.

    Raises: Malformed.
    """
    sizes = _sizes(manifest)
    with assuming({name: size.most for name, size in sizes.items()}):
        try:
            return _plan(manifest, texts, weights, models, sizes)
        except ValueError as error:
            raise Malformed(f"extents: {error}") from error


def _plan(
    manifest: BundleManifest,
    texts: Mapping[str, str],
    weights: Mapping[str, np.ndarray],
    models: Sequence[bytes],
    sizes: Mapping[str, Size],
) -> NetworkPlan:
    known = manifest.form in get_args(Form)
    buffers = tuple(_read(ProgramBuffer, entry, sizes) for entry in manifest.buffers)
    shapes = {entry.name: entry.shape for entry in buffers}
    variants = tuple(_variant(each, sizes) for each in manifest.variants)
    at_some = _AtSome(sizes, variants)
    return NetworkPlan(
        name=manifest.name,
        model_key=manifest.model_key,
        kernels=tuple(_kernel(name, text, manifest) for name, text in texts.items()),
        options=manifest.options,
        buffers=buffers,
        launches=tuple(_read(KernelLaunch, entry, sizes) for entry in manifest.launches),
        inputs=manifest.inputs,
        outputs=manifest.outputs,
        weights=weights,
        device=manifest.target,
        notes=manifest.notes,
        aliases=tuple(_alias(a, shapes.get(a.value, ()), at_some) for a in manifest.aliases),
        form=cast("Form", manifest.form) if known else "persistent",
        hosts=tuple(
            PlanHost(
                label=entry.label,
                model=model,
                inputs=entry.inputs,
                outputs=entry.outputs,
                after=entry.after,
                engine=entry.engine,
            )
            for entry, model in zip(manifest.hosts, models, strict=True)
        ),
        loops=tuple(_read(PlanLoop, entry, sizes) for entry in manifest.loops),
        counts=manifest.counts,
        indices={n: _extent(e, sizes) for n, e in manifest.indices.items()},
        least=manifest.least,
        sizes=tuple(
            PlanSize(size=sizes[each.name], buffer=each.buffer, input=each.input, axis=each.axis)
            for each in manifest.sizes
        ),
        values={n: tuple(_extent(e, sizes) for e in row) for n, row in manifest.values.items()},
        variants=variants,
        states=manifest.states,
    )


@dataclass(frozen=True, slots=True)
class _AtSome:
    """Sizes for which something may be made."""

    sizes: Mapping[str, Size]
    variants: Sequence[PlanVariant]

    def make(self, make: Callable[[], T]) -> T:
        """What is made at the sizes at hand, or else at the largest ones of a variant: what one of
        them has need not be possible for the others. Raises: ValueError."""
        try:
            return make()
        except ValueError:
            for _, values in corners([*self.sizes.values()], self.variants, largest=True):
                with suppress(ValueError), assuming(values):
                    return make()
            raise


def _variant(entry: _VariantEntry, sizes: Mapping[str, Size]) -> PlanVariant:
    return PlanVariant(
        conditions=tuple(parse_condition(text, sizes) for text in entry.conditions),
        first=entry.first,
        end=entry.end,
        first_host=entry.first_host,
        end_host=entry.end_host,
        outputs=entry.outputs,
    )


def _sizes(manifest: BundleManifest) -> dict[str, Size]:
    try:
        return {
            e.name: Size(e.name, e.least, e.most, e.step, counted=e.input not in manifest.inputs)
            for e in manifest.sizes
        }
    except ValueError as error:
        raise Malformed(f"sizes: {error}") from error


def _as(kind: type[T], value: object) -> T:
    """The entry with the fields of a value, Dims as their texts."""
    return kind(**{f.name: _written(getattr(value, f.name)) for f in fields(cast("Any", kind))})


def _written(value: object) -> object:
    match value:
        case Dim():
            return str(value)
        case tuple():
            return tuple(map(_written, cast("tuple[object, ...]", value)))
        case _:
            return value


def _read(kind: type[T], entry: object, sizes: Mapping[str, Size]) -> T:
    """The value with the fields of an entry, whose extents may be texts."""
    own = {name: getattr(entry, name) for name in (f.name for f in fields(cast("Any", entry)))}
    for name in _EXTENTS & own.keys():
        stated = own[name]
        is_shape = isinstance(stated, tuple)
        own[name] = tuple(_extent(e, sizes) for e in stated) if is_shape else _extent(stated, sizes)
    return kind(**own)


def _extent(stated: Extent, sizes: Mapping[str, Size]) -> int:
    return _parsed(stated, tuple(sizes.values())) if isinstance(stated, str) else stated


@lru_cache(maxsize=1 << 12)
def _parsed(text: str, sizes: tuple[Size, ...]) -> int:
    """The extent of that text: launches of one layer state those of the next one."""
    return parse_dim(text, {size.name: size for size in sizes})


def _size_entry(each: PlanSize) -> dict[str, object]:
    size = each.size
    entry = _SizeEntry(
        name=size.name,
        least=size.least,
        most=size.most,
        step=size.step,
        buffer=each.buffer,
        input=each.input,
        axis=each.axis,
    )
    return _without(entry, step=1, axis=None)


def _variant_entry(variant: PlanVariant) -> _VariantEntry:
    return _VariantEntry(
        conditions=tuple(map(str, variant.conditions)),
        first=variant.first,
        end=variant.end,
        first_host=variant.first_host,
        end_host=variant.end_host,
        outputs=variant.outputs,
    )


def _without(entry: object, **defaults: object) -> dict[str, object]:
    """The entry without those fields that have these values: as it was before there were any."""
    stated = cast("dict[str, object]", plain(entry))
    return {
        name: value
        for name, value in stated.items()
        if name not in defaults or value != defaults[name]
    }


def _alias_entry(alias: Alias) -> _AliasEntry:
    storage = alias.storage
    if storage is None:
        return _AliasEntry(value=alias.value, of=alias.of)
    if storage.is_columns:
        row = storage.parts[-1]
        columns = _Columns(offset=_stated_extent(row.first), width=_stated_extent(row.room))
        return _AliasEntry(value=alias.value, of=alias.of, columns=columns)
    parts = tuple(_as(_Digit, part) for part in storage.parts)
    return _AliasEntry(value=alias.value, of=alias.of, parts=parts)


def _stated_extent(extent: int) -> Extent:
    return extent if is_fixed(extent) else str(extent)


def _alias(entry: _AliasEntry, shape: tuple[int, ...], at_some: _AtSome) -> Alias:
    storage, sizes = None, at_some.sizes
    if entry.columns is not None:
        try:
            offset, width = (_extent(e, sizes) for e in (entry.columns.offset, entry.columns.width))
            storage = at_some.make(partial(row_major(shape).columns, offset, width))
        except (ValueError, IndexError) as error:
            raise Malformed(
                f"columns: expected some of a row that holds {shape}; {error}"
            ) from error
    elif entry.parts is not None:
        try:
            parts = entry.parts
            storage = at_some.make(
                lambda: Storage(shape, tuple(_read(AddressDigit, e, sizes) for e in parts))
            )
        except ValueError as error:
            raise Malformed(f"parts: {error}") from error
        if not storage.covers:
            raise Malformed(f"parts: expected the digits of each index of {shape}; got {storage}")
    return Alias(value=entry.value, of=entry.of, storage=storage)


def _host_entry(host: PlanHost) -> _HostEntry:
    return _HostEntry(
        label=host.label,
        ops=tuple(host.opened.ops),
        inputs=host.inputs,
        outputs=host.outputs,
        after=host.after,
        engine=host.engine,
    )


def _kernel(name: str, text: str, manifest: BundleManifest) -> KernelText:
    """The kernel with its properties."""
    stated = manifest.properties.get(name)
    if stated is None:
        return described_by_text(name, text)
    return KernelText(
        name=name,
        text=text,
        single_item=stated.single_item,
        images=stated.images,
        arena_bytes=stated.arena_bytes,
        intrinsics=stated.intrinsics,
    )


def described_by_text(name: str, text: str) -> KernelText:
    """A kernel of a bundle from before properties were stated, as its text says."""
    from retune.codegen.opencl.intrinsics import implementations_in

    arena = re.search(rf"^#define {re.escape(name)}_tile_arena (\d+)$", text, re.MULTILINE)
    found = re.search(rf"\bvoid\s+{re.escape(name)}\s*\(([^)]*)\)", text)
    arguments = enumerate(found[1].split(",") if found else [])
    return KernelText(
        name=name,
        text=text,
        single_item=f"static void {name}_group(" in text,
        images=tuple(n for n, argument in arguments if re.search(r"\bimage\w*_t\b", argument)),
        arena_bytes=int(arena[1]) if arena else None,
        intrinsics=tuple(sorted(implementations_in(text))),
    )
