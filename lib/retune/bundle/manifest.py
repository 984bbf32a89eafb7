"""NetworkPlan to JSON values and back, without its kernel texts, weights and host models.

Read `to_manifest`. Fields are named, unknown ones are ignored, so that an older program reads what
a newer one of the same format version wrote. This file opens no file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import TypeAlias, cast, get_args

import numpy as np

from retune.bundle.plan import (
    Alias,
    BufferRole,
    Engine,
    Form,
    NetworkPlan,
    PlanBuffer,
    PlanHost,
    PlanLaunch,
)
from retune.core.target import DeviceSpec
from retune.ir.storage import Part, Storage, row_major

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""What a JSON document holds."""


class Malformed(ValueError):
    """A manifest lacks a field, or a field has the wrong type; the message names it."""


def to_manifest(plan: NetworkPlan) -> dict[str, Json]:
    """The plan's structure as JSON values; texts, weights and models lie in files of their own."""
    return {
        "name": plan.name,
        "model_key": plan.model_key,
        "target": _plain(asdict(plan.device)),
        "fingerprint": plan.device.fingerprint,
        "options": list(plan.options),
        "inputs": list(plan.inputs),
        "outputs": list(plan.outputs),
        "buffers": [_written_buffer(entry) for entry in plan.buffers],
        "aliases": [_written_alias(alias) for alias in plan.aliases],
        "launches": [_plain(asdict(launch)) for launch in plan.launches],
        "hosts": [_host_entry(host) for host in plan.hosts],
        "notes": dict(plan.notes),
        "form": plan.form,
        "counts": dict(plan.counts),
    }


def from_manifest(
    manifest: Mapping[str, Json],
    kernels: Mapping[str, str],
    weights: Mapping[str, np.ndarray],
    models: Sequence[bytes] = (),
) -> NetworkPlan:
    """The plan that `to_manifest` was given, with these texts, weights and models of host steps.

    Raises: Malformed.
    """
    notes = child(manifest, "notes")
    buffers = tuple(_buffer(entry) for entry in children(manifest, "buffers"))
    shapes = {entry.name: entry.shape for entry in buffers}
    return NetworkPlan(
        name=text(manifest, "name"),
        model_key=text(manifest, "model_key"),
        kernels=kernels,
        options=_texts(manifest, "options"),
        buffers=buffers,
        launches=tuple(_launch(entry) for entry in children(manifest, "launches")),
        inputs=_texts(manifest, "inputs"),
        outputs=_texts(manifest, "outputs"),
        weights=weights,
        device=_device(child(manifest, "target")),
        notes={name: text(notes, name) for name in notes},
        aliases=tuple(_alias(entry, shapes) for entry in children(manifest, "aliases")),
        form=_form(manifest),
        hosts=tuple(
            _host(entry, model) for entry, model in zip(host_entries(manifest), models, strict=True)
        ),
        counts=_counts(manifest),
    )


def _written_buffer(entry: PlanBuffer) -> Json:
    """Nothing is said of images where there are none."""
    written = asdict(entry)
    if not entry.image:
        del written["image"]
    return _plain(written)


def _written_alias(alias: Alias) -> Json:
    written: dict[str, Json] = {"value": alias.value, "of": alias.of}
    if alias.storage is not None and alias.storage.is_columns:
        row = alias.storage.parts[-1]
        written["columns"] = {"offset": row.first, "width": row.room}
    elif alias.storage is not None:
        written["parts"] = [_plain(asdict(part)) for part in alias.storage.parts]
    return written


def _alias(entry: Mapping[str, Json], shapes: Mapping[str, tuple[int, ...]]) -> Alias:
    value, storage = text(entry, "value"), None
    if "columns" in entry:
        storage = _columns(child(entry, "columns"), shapes.get(value, ()))
    elif "parts" in entry:
        storage = _storage(children(entry, "parts"), shapes.get(value, ()))
    return Alias(value=value, of=text(entry, "of"), storage=storage)


def _columns(stated: Mapping[str, Json], shape: tuple[int, ...]) -> Storage:
    try:
        return row_major(shape).columns(whole(stated, "offset"), whole(stated, "width"))
    except (ValueError, IndexError) as error:
        raise Malformed(f"columns: expected some of a row that holds {shape}; {error}") from error


def _storage(stated: Sequence[Mapping[str, Json]], shape: tuple[int, ...]) -> Storage:
    """Parts that hold every element of the shape once: the digits of each of its dimensions."""
    names = [field.name for field in fields(Part)]
    try:
        parts = tuple(Part(**{name: whole(part, name) for name in names}) for part in stated)
    except ValueError as error:
        raise Malformed(f"parts: {error}") from error
    storage = Storage(shape, parts)
    if not storage.covers:
        raise Malformed(f"parts: expected the digits of each index of {shape}; got {storage}")
    return storage


def host_entries(manifest: Mapping[str, Json]) -> tuple[dict[str, Json], ...]:
    """What the manifest says of each host step; bundles from before there were any have none."""
    return children(manifest, "hosts") if "hosts" in manifest else ()


def engine_of(entry: Mapping[str, Json]) -> Engine:
    """What runs a step aside from kernels; nothing is stated where the host does.

    Raises: Malformed.
    """
    engine = text(entry, "engine") if "engine" in entry else "onnx"
    if engine not in get_args(Engine):
        raise Malformed(f"engine: expected one of {', '.join(get_args(Engine))}; got {engine}")
    return cast("Engine", engine)


def text(values: Mapping[str, Json], field: str) -> str:
    """The string of that field. Raises: Malformed."""
    value = values.get(field)
    if not isinstance(value, str):
        raise Malformed(f"{field}: expected a text; got {_kind(value)}")
    return value


def whole(values: Mapping[str, Json], field: str) -> int:
    """The integer of that field. Raises: Malformed."""
    value = values.get(field)
    if not isinstance(value, int) or isinstance(value, bool):
        raise Malformed(f"{field}: expected a whole number; got {_kind(value)}")
    return value


def child(values: Mapping[str, Json], field: str) -> dict[str, Json]:
    """The object of that field. Raises: Malformed."""
    value = values.get(field)
    if not isinstance(value, dict):
        raise Malformed(f"{field}: expected an object; got {_kind(value)}")
    return value


def children(values: Mapping[str, Json], field: str) -> tuple[dict[str, Json], ...]:
    """The objects in the list of that field. Raises: Malformed."""
    found: list[dict[str, Json]] = []
    for item in _items(values, field):
        if not isinstance(item, dict):
            raise Malformed(f"{field}: expected a list of objects; got {_kind(item)} in it")
        found.append(item)
    return tuple(found)


def wholes(values: Mapping[str, Json], field: str) -> tuple[int, ...]:
    """The integers in the list of that field. Raises: Malformed."""
    return tuple(whole({field: item}, field) for item in _items(values, field))


def _items(values: Mapping[str, Json], field: str) -> list[Json]:
    value = values.get(field)
    if not isinstance(value, list):
        raise Malformed(f"{field}: expected a list; got {_kind(value)}")
    return value


def _texts(values: Mapping[str, Json], field: str) -> tuple[str, ...]:
    return tuple(text({field: item}, field) for item in _items(values, field))


def _buffer(entry: Mapping[str, Json]) -> PlanBuffer:
    role = text(entry, "role")
    if role not in get_args(BufferRole):
        raise Malformed(f"role: expected one of {', '.join(get_args(BufferRole))}; got {role}")
    return PlanBuffer(
        name=text(entry, "name"),
        dtype=text(entry, "dtype"),
        elements=whole(entry, "elements"),
        role=cast("BufferRole", role),
        shape=wholes(entry, "shape"),
        image=whole(entry, "image") if "image" in entry else 0,
    )


def _counts(manifest: Mapping[str, Json]) -> dict[str, int]:
    """The numbers of inputs that hold indices; none for bundles from before they were known."""
    if "counts" not in manifest:
        return {}
    counts = child(manifest, "counts")
    return {name: whole(counts, name) for name in counts}


def _form(manifest: Mapping[str, Json]) -> Form:
    """The form; `persistent` for bundles from before there were others, and for forms to come."""
    form = manifest.get("form")
    return cast("Form", form) if form in get_args(Form) else "persistent"


def _launch(entry: Mapping[str, Json]) -> PlanLaunch:
    return PlanLaunch(
        kernel=text(entry, "kernel"),
        args=_texts(entry, "args"),
        global_size=wholes(entry, "global_size"),
        local_size=wholes(entry, "local_size"),
        label=text(entry, "label"),
        flops=whole(entry, "flops"),
        bytes=whole(entry, "bytes"),
        writes=_texts(entry, "writes"),
    )


def _host_entry(host: PlanHost) -> dict[str, Json]:
    """All but the model; what it consists of stands there for people."""
    return {
        "label": host.label,
        "ops": list(host.opened.ops),
        "inputs": list(host.inputs),
        "outputs": list(host.outputs),
        "after": host.after,
        **({} if host.engine == "onnx" else {"engine": host.engine}),
    }


def _host(entry: Mapping[str, Json], model: bytes) -> PlanHost:
    return PlanHost(
        label=text(entry, "label"),
        model=model,
        inputs=_texts(entry, "inputs"),
        outputs=_texts(entry, "outputs"),
        after=whole(entry, "after"),
        engine=engine_of(entry),
    )


def _device(entry: Mapping[str, Json]) -> DeviceSpec:
    values: dict[str, object] = {}
    for field in fields(DeviceSpec):
        if field.default in ("", (), 0) and field.name not in entry:
            values[field.name] = field.default  # of before that field
        elif field.name in ("extensions", "instructions"):
            values[field.name] = _texts(entry, field.name)
        elif field.type is int:
            values[field.name] = whole(entry, field.name)
        else:
            values[field.name] = text(entry, field.name)
    if values["device_class"] not in ("cpu", "gpu"):
        raise Malformed(f"device_class: expected cpu or gpu; got {values['device_class']}")
    return DeviceSpec(**values)  # pyright: ignore[reportArgumentType]  # checked one by one above


def _plain(value: object) -> Json:
    """Tuples become lists, as JSON has no other sequence."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in cast("dict[str, object]", value).items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in cast("tuple[object, ...]", value)]
    return cast("Json", value)


def _kind(value: Json) -> str:
    return "nothing" if value is None else type(value).__name__
