"""What is unpacked is bounded by this machine, whatever a zip says of itself."""

import json
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retune.bundle import archive
from retune.bundle.format import open_bundle, pack_zip, read_bundle, write_bundle
from retune.bundle.plan import NetworkPlan
from retune.core.errors import RecordError, VerifyError
from retune.core.keys import content_key


def test_a_part_that_does_not_fit_into_memory_is_not_unpacked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = pack_zip(folder, tmp_path / "net.zip")
    monkeypatch.setattr(archive, "machine_bytes", lambda: 2 * 600)
    with pytest.raises(RecordError, match=r"module\.json: expected at most 600 bytes, which this"):
        read_bundle(path)


def test_parts_share_the_memory(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = pack_zip(folder, tmp_path / "net.zip")
    sizes = {part.name: part.stat().st_size for part in folder.iterdir()}
    most = sizes["module.json"] + sizes["weights.safetensors"] + 1
    monkeypatch.setattr(archive, "machine_bytes", lambda: 2 * most)
    with pytest.raises(RecordError, match=r"kernels\.cl: expected at most 1 bytes"):
        read_bundle(path)


@pytest.mark.parametrize("part", ["kernels.cl", "weights.safetensors"])
def test_a_part_is_no_larger_than_its_kind_can_be(folder: Path, part: str):
    """A file that says of itself that it is larger is not even hashed."""
    manifest = json.loads((folder / "module.json").read_text())
    del manifest["key"]
    manifest["files"][part]["bytes"] = 1 << 60
    (folder / "module.json").write_text(json.dumps({**manifest, "key": content_key(manifest)}))
    with pytest.raises(RecordError, match=rf"module\.json: expected {part} of at most \d+ bytes"):
        read_bundle(folder)


def test_a_zip_of_very_many_files_is_no_bundle(folder: Path, tmp_path: Path):
    path = pack_zip(folder, tmp_path / "net.zip")
    with zipfile.ZipFile(path, "a") as more:
        for number in range(30_000):
            more.writestr(f"{number}", b"")
    with pytest.raises(RecordError, match="a list of files of more than 1048576 bytes"):
        read_bundle(path)


def test_other_files_in_a_zip_do_not_matter(folder: Path, tmp_path: Path):
    path = pack_zip(folder, tmp_path / "net.zip")
    with zipfile.ZipFile(path, "a") as more:
        more.writestr("README", "text")
        more.comment = b"x" * 1000
    assert read_bundle(path).name == "demo"


def changed_meanwhile(folder: Path) -> None:
    with open_bundle(folder) as opened, (folder / "weights.safetensors").open("r+b") as stream:
        stream.seek(-4, os.SEEK_END)
        stream.write(b"\0\0\0\1")
        stream.flush()
        os.utime(stream.fileno(), ns=(0, 1))
        assert opened.plan.weights["bias"].view(np.uint32)[-1] == 1 << 24  # what would be loaded


def test_weights_that_change_after_they_were_hashed_are_noticed(folder: Path):
    with pytest.raises(RecordError, match="expected a file that stays while it is loaded"):
        changed_meanwhile(folder)


def test_a_bundle_that_is_replaced_meanwhile_stays_what_it_was(plan: NetworkPlan, folder: Path):
    with open_bundle(folder) as before:
        write_bundle(replace(plan, weights={"bias": np.zeros(32, np.float32)}), folder)
        assert before.plan.weights["bias"].tolist() == list(range(32))
    assert not read_bundle(folder).weights["bias"].any()


@pytest.mark.parametrize("option", ["-I/etc", "-DX=1", "-save-temps", "-cl-std=CL9.9", "; rm"])
def test_build_options_come_from_a_list(plan: NetworkPlan, tmp_path: Path, option: str):
    with pytest.raises(VerifyError, match="expected build options of"):
        write_bundle(replace(plan, options=(option,)), tmp_path / "module")
