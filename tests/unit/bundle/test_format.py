"""A bundle comes back as it was written; every kind of damage is one clear error."""

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors import SafetensorError

from retune.bundle import format as bundle_format
from retune.bundle.format import (
    WEIGHTS,
    is_bundle,
    pack_zip,
    read_bundle,
    read_outline,
    restate_bundle,
    write_bundle,
)
from retune.bundle.manifest import Malformed, from_manifest, read_manifest, to_manifest
from retune.bundle.plan import Form, NetworkPlan, PlanLoop
from retune.bundle.weights import map_file, save_weights, view_weights
from retune.codegen.source import ProgramBuffer
from retune.core.dims import Size, dim_of
from retune.core.dtypes import NUMPY_DTYPES, DType
from retune.core.errors import InputError, RecordError, VerifyError, may_pass
from retune.core.keys import content_key
from retune.core.states import State
from tests.support.bundle_fixtures import make_plan
from tests.support.programs import kernels_of, texts_of


def test_a_bundle_comes_back_as_it_was_written(plan: NetworkPlan, folder: Path) -> None:
    assert _same(read_bundle(folder), plan)


@pytest.mark.parametrize("form", ["persistent", "inline", "queued"])
def test_the_form_comes_back(plan: NetworkPlan, tmp_path: Path, form: Form) -> None:
    folder = write_bundle(replace(plan, form=form), tmp_path / "module")
    assert read_bundle(folder).form == form


@pytest.mark.parametrize("form", [None, "a form to come"])
def test_a_bundle_without_a_known_form_is_persistent(plan: NetworkPlan, form: str | None) -> None:
    manifest = to_manifest(plan)
    if form is None:
        del manifest["form"]
    else:
        manifest["form"] = form
    assert from_manifest(read_manifest(manifest), texts_of(plan), plan.weights).form == "persistent"


def test_a_zip_is_read_like_its_folder(plan: NetworkPlan, folder: Path, tmp_path: Path) -> None:
    assert _same(read_bundle(pack_zip(folder, tmp_path / "out" / "module.zip")), plan)


def test_the_same_bundle_gives_the_same_zip(folder: Path, tmp_path: Path) -> None:
    first, second = (pack_zip(folder, tmp_path / name) for name in ("a.zip", "b.zip"))
    assert first.read_bytes() == second.read_bytes()


def test_the_same_plan_gives_the_same_files(plan: NetworkPlan, tmp_path: Path) -> None:
    first, second = (write_bundle(plan, tmp_path / name) for name in ("a", "b"))
    for part in first.iterdir():
        assert part.read_bytes() == (second / part.name).read_bytes()


def test_the_manifest_states_the_memory(folder: Path) -> None:
    memory = json.loads((folder / "module.json").read_text())["memory"]
    assert (memory["peak_bytes"], memory["arena_bytes"]) == (1024, 512)


@pytest.mark.parametrize("dtype", NUMPY_DTYPES[1:])
def test_weights_of_every_type_come_back(plan: NetworkPlan, tmp_path: Path, dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(DType(dtype).numpy)
    extra = ProgramBuffer(name="w", dtype=dtype, elements=6, role="weight", shape=(3, 2))
    weights = {**plan.weights, "w": array.T}  # a view that is not contiguous
    more = replace(plan, buffers=(*plan.buffers, extra), weights=weights)
    read = read_bundle(write_bundle(more, tmp_path / "module")).weights["w"]
    assert read.dtype == array.dtype
    assert np.array_equal(read, array.T)


def test_a_network_without_weights_is_a_bundle(
    plan: NetworkPlan, with_launch: Callable[..., NetworkPlan], tmp_path: Path
) -> None:
    buffers = tuple(entry for entry in plan.buffers if entry.role != "weight")
    bare = with_launch(replace(plan, buffers=buffers, weights={}), 0, kernel="scale")
    bare = with_launch(bare, 0, args=("x", "sum"))
    assert read_bundle(write_bundle(bare, tmp_path / "module")).weights == {}


def test_kernels_that_share_a_text_are_stored_once(plan: NetworkPlan, tmp_path: Path) -> None:
    both = "".join(texts_of(plan).values())
    shared = replace(plan, kernels=kernels_of({"add": both, "scale": both}))
    folder = write_bundle(shared, tmp_path / "module")
    assert (folder / "kernels.cl").read_text().count("void add") == 1
    assert read_bundle(folder).kernels == shared.kernels


def test_weights_are_views_of_the_file(folder: Path) -> None:
    bias = read_bundle(folder).weights["bias"]
    assert not bias.flags.owndata
    assert not bias.flags.writeable


def test_a_bundle_is_replaced(plan: NetworkPlan, folder: Path) -> None:
    (folder / "stale.txt").write_text("x")
    write_bundle(replace(plan, name="second"), folder)
    assert read_bundle(folder).name == "second"
    assert [path.name for path in folder.parent.iterdir() if "module" in path.name] == ["module"]
    assert not (folder / "stale.txt").exists()


def test_a_damaged_bundle_may_be_replaced(plan: NetworkPlan, folder: Path) -> None:
    (folder / "kernels.cl").unlink()
    assert _same(read_bundle(write_bundle(plan, folder)), plan)


def test_an_empty_folder_may_be_used(plan: NetworkPlan, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert is_bundle(write_bundle(plan, tmp_path / "empty"))


@pytest.mark.parametrize("name", ["notes.txt", "module.json"])
def test_a_folder_that_is_no_bundle_is_left_alone(
    plan: NetworkPlan, tmp_path: Path, name: str
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_text('{"format": "other"}')
    with pytest.raises(InputError, match="name another folder"):
        write_bundle(plan, tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == [name]


def test_a_file_is_left_alone(plan: NetworkPlan, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="left as it is"):
        write_bundle(plan, tmp_path / "file")


def test_an_invalid_plan_writes_nothing(plan: NetworkPlan, tmp_path: Path) -> None:
    with pytest.raises(VerifyError):
        write_bundle(replace(plan, inputs=()), tmp_path / "out" / "module")
    assert not (tmp_path / "out").exists()


def test_a_failed_write_leaves_the_old_bundle(
    plan: NetworkPlan, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(bundle_format, "save_weights", full_disk)
    with pytest.raises(OSError, match="no space"):
        write_bundle(replace(plan, name="second"), folder)
    assert read_bundle(folder).name == "demo"
    assert [path.name for path in folder.parent.iterdir() if "module" in path.name] == ["module"]


@pytest.mark.parametrize("part", ["module.json", "kernels.cl", "weights.safetensors"])
def test_a_missing_part_is_named(folder: Path, part: str) -> None:
    (folder / part).unlink()
    _refused(folder, f"{part}: expected a part of that name; got none")


@pytest.mark.parametrize("part", ["kernels.cl", "weights.safetensors"])
@pytest.mark.parametrize("keep", [0, -1])
def test_a_truncated_part_is_named(folder: Path, part: str, keep: int) -> None:
    whole = (folder / part).read_bytes()
    (folder / part).write_bytes(whole[:keep])
    _refused(folder, f"{part}: expected {len(whole)} bytes; got {len(whole[:keep])}")


@pytest.mark.parametrize("part", ["kernels.cl", "weights.safetensors"])
def test_a_flipped_byte_is_found(folder: Path, part: str) -> None:
    raw = bytearray((folder / part).read_bytes())
    raw[-5] ^= 1
    (folder / part).write_bytes(raw)
    _refused(folder, f"{part}: expected content with hash")


def test_an_outline_reads_nothing_of_the_weights(plan: NetworkPlan, folder: Path) -> None:
    raw = bytearray((folder / WEIGHTS).read_bytes())
    raw[-5] ^= 1
    (folder / WEIGHTS).write_bytes(raw)
    assert _same(read_outline(folder), replace(plan, weights={}))


def test_a_restated_bundle_shares_all_files_but_the_manifest(
    plan: NetworkPlan, folder: Path, tmp_path: Path
) -> None:
    def change(plan: NetworkPlan) -> NetworkPlan:
        return replace(plan, name="other", form="queued", notes={"of": "it"})

    made = restate_bundle(folder, tmp_path / "restated", change)
    assert _same(made, replace(change(plan), weights={}))
    written = write_bundle(change(plan), tmp_path / "written")
    for part in written.iterdir():
        restated = tmp_path / "restated" / part.name
        assert restated.read_bytes() == part.read_bytes()
        assert restated.samefile(folder / part.name) == (part.name != "module.json")


def test_a_restated_bundle_takes_the_place_of_its_source(plan: NetworkPlan, folder: Path) -> None:
    restate_bundle(folder, folder, lambda written: replace(written, form="inline"))
    assert _same(read_bundle(folder), replace(plan, form="inline"))


def test_a_longer_part_is_refused(folder: Path) -> None:
    with (folder / "kernels.cl").open("ab") as stream:
        stream.write(b"x")
    _refused(folder, r"kernels.cl: expected \d+ bytes; got more")


@pytest.mark.parametrize("algorithm", ["sha256", "blake2b"])
def test_damage_is_found_by_the_hash_that_the_bundle_has(folder: Path, algorithm: str) -> None:
    """Bundles from before there was a SHA-256 have BLAKE2b alone."""
    manifest = json.loads((folder / "module.json").read_text())
    del manifest["key"]
    for facts in manifest["files"].values():
        if algorithm == "blake2b":
            del facts["sha256"]
    (folder / "module.json").write_text(json.dumps({**manifest, "key": content_key(manifest)}))
    expected = manifest["files"]["weights.safetensors"][algorithm]
    assert read_bundle(folder).name == "demo"
    with (folder / "weights.safetensors").open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        stream.write(b"\1")
    _refused(folder, f"weights.safetensors: expected content with hash {expected}; got")


def test_an_edited_manifest_is_refused(folder: Path) -> None:
    path = folder / "module.json"
    path.write_text(path.read_text().replace('"demo"', '"other"'))
    _refused(folder, "module.json: expected content with key .*; got changed content")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "module.json: expected JSON"),
        (b"\xff\xfe", "module.json: expected JSON"),
        (b"[]", 'expected "format": "retune-bundle"'),
        (b'{"format": "other"}', 'expected "format": "retune-bundle"'),
        (b'{"format": "retune-bundle", "format_version": 99}', "install a newer retune"),
    ],
)
def test_another_manifest_is_refused(folder: Path, raw: bytes, message: str) -> None:
    (folder / "module.json").write_bytes(raw)
    _refused(folder, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.pop("launches"), "launches: expected a value, got nothing"),
        (lambda m: m.pop("files"), "facts of weights.safetensors; got none"),
        (lambda m: m.pop("kernels"), "expected a kernel of the plan; got add"),
        (lambda m: m.update(name=3), "name: expected a text, got 3"),
        (lambda m: m.update(buffers=[1]), r"buffers\[0\]: expected an object, got 1"),
        (lambda m: m["buffers"][0].update(role="x"), "role: expected one of input, output"),
        (lambda m: m["target"].update(compute_units="2"), "compute_units: expected a whole number"),
        (lambda m: m["target"].update(device_class=3), "device_class: expected a text, got 3"),
        (lambda m: m["launches"][0].update(kernel="x"), "expected a kernel of the plan; got x"),
        (lambda m: m["launches"][0].update(args=[1]), r"args\[0\]: expected a text, got 1"),
        # Each would be a copy of its own of a text that lies there once.
        (lambda m: m["kernels"].extend(m["kernels"][:1] * 9), "one behind the other, below"),
        (
            lambda m: m["kernels"][0].update(first=-9),
            "expected a whole number of at least 0, got -9",
        ),
    ],
)
def test_a_manifest_with_a_wrong_field_names_it(
    folder: Path, change: Callable[[dict[str, object]], object], message: str
) -> None:
    path = folder / "module.json"
    manifest = json.loads(path.read_text())
    del manifest["key"]
    change(manifest)
    path.write_text(json.dumps({**manifest, "key": content_key(manifest)}))
    _refused(folder, message)


def test_unknown_fields_are_ignored(plan: NetworkPlan, folder: Path) -> None:
    path = folder / "module.json"
    manifest = json.loads(path.read_text())
    del manifest["key"]
    manifest["launches"][0]["colour"] = manifest["later"] = "blue"
    path.write_text(json.dumps({**manifest, "key": content_key(manifest)}))
    assert _same(read_bundle(folder), plan)


def test_a_manifest_of_before_the_host_was_kept_is_read(plan: NetworkPlan, folder: Path) -> None:
    path = folder / "module.json"
    manifest = json.loads(path.read_text())
    for name in ("key", "target.host", "target.affinity"):
        entry, _, field = name.rpartition(".")
        del (manifest[entry] if entry else manifest)[field]
    path.write_text(json.dumps({**manifest, "key": content_key(manifest)}))
    assert _same(read_bundle(folder), plan)


def test_nothing_there_is_said(tmp_path: Path) -> None:
    _refused(tmp_path / "none", "expected a bundle folder or zip; got nothing")


def test_an_empty_folder_is_no_bundle(tmp_path: Path) -> None:
    _refused(tmp_path, "module.json: expected a part of that name; got none")


def test_a_file_that_is_no_zip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "module.zip").write_bytes(b"PK\x03\x04 something")
    _refused(tmp_path / "module.zip", "a file that is neither, or is damaged")


def test_a_truncated_zip_is_refused(folder: Path, tmp_path: Path) -> None:
    path = pack_zip(folder, tmp_path / "module.zip")
    path.write_bytes(path.read_bytes()[:-40])
    _refused(path, "a file that is neither, or is damaged")


def test_a_zip_without_a_part_is_refused(folder: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "module.zip", "w") as archive:
        archive.write(folder / "module.json", "module.json")
    _refused(tmp_path / "module.zip", "weights.safetensors: expected a part of that name")


def test_a_damaged_bundle_is_not_packed(folder: Path, tmp_path: Path) -> None:
    (folder / "kernels.cl").unlink()
    with pytest.raises(RecordError):
        pack_zip(folder, tmp_path / "module.zip")
    assert not (tmp_path / "module.zip").exists()


def test_a_bundle_may_move(plan: NetworkPlan, folder: Path, tmp_path: Path) -> None:
    assert _same(read_bundle(Path(shutil.move(folder, tmp_path / "elsewhere"))), plan)


NAMES = (
    *("__metadata__", "__metadata___", "__metadata__/x", "../../etc/passwd", "/", "\\", " "),
    *("a b", 'say "hi"', "it's", "gewicht_ß", "重み", "\N{SNAKE}", "while", "w" * 100_000),
)


def test_weights_of_any_name_come_back(tmp_path: Path) -> None:
    weights = {name: np.full(3, i, np.float32) for i, name in enumerate(NAMES)}
    save_weights(weights, tmp_path / "file")
    found = view_weights(map_file(tmp_path / "file"))
    assert found.keys() == weights.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(found[name], array)


def test_how_many_values_an_input_has_comes_back(plan: NetworkPlan, tmp_path: Path) -> None:
    counted = replace(plan, counts={"x": 30_000})
    assert read_bundle(write_bundle(counted, tmp_path / "module")).counts == {"x": 30_000}


def test_a_manifest_of_before_values_were_counted_is_read(plan: NetworkPlan) -> None:
    manifest = to_manifest(plan)
    del manifest["counts"]
    assert from_manifest(read_manifest(manifest), texts_of(plan), plan.weights).counts == {}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "header: expected at most"),
        (b"\xff" * 8, "header: expected at most"),
        (b"\x02" + b"\0" * 7 + b"{", "header: expected at most"),
        (b"\x02" + b"\0" * 7 + b"{]", "header: expected JSON"),
        (b"\x02" + b"\0" * 7 + b"[]", "header: expected an object"),
    ],
)
def test_a_weights_file_needs_its_header(data: bytes, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        view_weights(memoryview(data))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            {"dtype": "F8", "shape": [1], "data_offsets": [0, 4]},
            "weight w: expected one of F32",
        ),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, "weight w: expected .2,. of"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [8, 12]}, "weight w: expected .1,. of"),
        ({"dtype": "F32", "shape": "x", "data_offsets": [8, 12]}, "shape: expected a list"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [0]}, "data_offsets: expected a list of 2"),
        (
            {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]},
            "expected a whole number of at least 0",
        ),
    ],
)
def test_a_weight_fits_its_bytes(entry: dict[str, object], message: str) -> None:
    header = json.dumps({"w": entry}).encode()
    data = len(header).to_bytes(8, "little") + header + b"\0" * 4
    with pytest.raises(Malformed, match=message):
        view_weights(memoryview(data))


def _same(found: NetworkPlan, expected: NetworkPlan) -> bool:
    arrays = found.weights.keys() == expected.weights.keys() and all(
        np.array_equal(found.weights[name], array) for name, array in expected.weights.items()
    )
    return arrays and replace(found, weights={}) == replace(expected, weights={})


def _refused(path: Path, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        read_bundle(path)


def test_a_manifest_of_lists_without_end_is_refused(folder: Path) -> None:
    (folder / "module.json").write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(RecordError, match=r"module\.json: expected JSON"):
        read_bundle(folder)


def test_weights_with_a_header_of_lists_without_end_are_refused() -> None:
    header = b"[" * 100_000 + b"]" * 100_000
    with pytest.raises(Malformed, match="header: expected JSON"):
        view_weights(memoryview(len(header).to_bytes(8, "little") + header))


@pytest.mark.parametrize("how", ["bent", "encrypted", "twice", "elsewhere"])
def test_a_part_that_cannot_be_unpacked_is_named(folder: Path, tmp_path: Path, how: str) -> None:
    path = pack_zip(folder, tmp_path / "net.zip")
    with zipfile.ZipFile(path, "a") as archive:
        if how == "twice":
            with pytest.warns(UserWarning, match="Duplicate name"):
                archive.writestr("kernels.cl", "void other() {}")
        entry = archive.getinfo("kernels.cl")
    data = bytearray(path.read_bytes())
    listed = data.rindex(b"PK\x01\x02", 0, data.index(b"kernels.cl", data.index(b"PK\x01\x02")))
    if how == "bent":
        start = entry.header_offset + 30 + len("kernels.cl")
        data[start : start + 8] = b"\xff" * 8
    elif how == "encrypted":
        data[listed + 8] |= 1
    elif how == "elsewhere":
        data[listed + 42 : listed + 46] = b"\xff\xff\xff\xf0"
    path.write_bytes(bytes(data))
    with pytest.raises(RecordError, match=r"kernels\.cl: expected|is neither, or is damaged"):
        read_bundle(path)


def test_a_full_disk_is_an_error_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """So that it may pass: what its library raises says nothing but words."""
    (tmp_path / "file").mkdir()  # cannot be written
    weights = {"w": np.zeros(4, np.float32)}
    with pytest.raises(SafetensorError):
        save_weights(weights, tmp_path / "file")
    full = SimpleNamespace(free=0)
    monkeypatch.setattr("retune.core.arrays.shutil.disk_usage", lambda _: full)
    with pytest.raises(OSError, match=r"No space left on device.*file") as found:
        save_weights(weights, tmp_path / "file")
    assert may_pass(found.value)


def test_an_older_program_does_not_read_a_plan_whose_states_lie_in_another_order():
    plan = make_plan()
    kept = State(input=plan.inputs[0], output=plan.outputs[0])
    grown = replace(kept, axis=1)
    least = bundle_format._least_version
    assert least(replace(plan, states=(kept,))) == least(plan) < bundle_format.FORMAT_VERSION
    assert least(replace(plan, states=(grown,))) == 7


def test_an_older_program_does_not_read_a_loop_whose_times_depend_on_sizes():
    loops = (PlanLoop(first=0, end=1, times=n) for n in (4, dim_of(Size("n", 1, 4))))
    fixed, open_ = (replace(make_plan(), loops=(loop,)) for loop in loops)
    assert bundle_format._least_version(fixed) < bundle_format.FORMAT_VERSION
    assert bundle_format._least_version(open_) == bundle_format.FORMAT_VERSION
