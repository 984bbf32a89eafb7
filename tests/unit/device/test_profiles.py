"""Profiles that ship: whole, each number with a source, and none of this machine's."""

from dataclasses import replace

import pytest

from retune.core.dtypes import FLOAT16
from retune.core.errors import InputError
from retune.core.target import GENERIC_CPU
from retune.device.measure.lease import lock_path
from retune.device.profiles import is_profile, played, profile_names, read_profile, split_profile

SHIPPED = {
    *("mali-g31", "mali-g52", "mali-g76", "mali-g610", "mali-t860"),
    *("adreno-6xx", "intel-gen12", "amd-rdna2", "generic"),
}
POCL = replace(GENERIC_CPU, name="pocl", host="here", affinity="2 of 2 cores")
STATED = {
    *("opencl", "compute_units", "vector_bits", "l2_bytes", "cache_line_bytes"),
    *("max_local_bytes", "max_work_group", "global_memory_bytes", "extensions"),
    *("image_width", "image_height", "image_reads"),
}


def test_all_ship():
    assert set(profile_names()) == SHIPPED


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_each_number_has_a_source(name: str):
    profile = read_profile(name)
    assert profile.facts.keys() == STATED
    for fact in profile.facts.values():
        assert len(fact.source) > 10, fact
    spec = profile.spec
    assert spec.name == f"profile:{name}" and spec.device_class == "gpu"
    assert (spec.host, spec.affinity, spec.computed_by, spec.instructions) == ("", "", "", ())
    assert spec.opencl.startswith("OpenCL ")
    assert 1 <= spec.max_work_group <= 1024 and spec.compute_units >= 1


def test_played_it_has_its_own_limits_and_the_machine_of_the_player():
    profile = read_profile("mali-g76")
    spec, own = played(profile, POCL), profile.spec
    assert spec.name == "profile:mali-g76@pocl"
    assert spec.model == f"Mali-G76 played by {POCL.model}"
    assert spec.host == "here"
    for name in ("max_work_group", "local_memory_bytes", "compute_units", "extensions", "opencl"):
        assert getattr(spec, name) == getattr(own, name)
    assert spec.fingerprint not in (own.fingerprint, POCL.fingerprint)
    assert lock_path(spec) == lock_path(POCL)


def test_images_are_no_larger_than_those_of_the_player():
    profile = read_profile("mali-t860")
    spec = played(profile, replace(POCL, image_width=16_384, image_height=8_192))
    assert profile.spec.image_width == 65_536
    assert (spec.image_width, spec.image_height) == (16_384, 8_192)


def test_who_reads_constants_faster_through_images():
    faster = {name for name in profile_names() if read_profile(name).spec.image_reads}
    assert faster == {"adreno-6xx", "mali-g31", "mali-g52", "mali-g76", "mali-g610"}


def test_names():
    assert is_profile("profile:generic") and not is_profile("pocl")
    assert split_profile("profile:generic")[1] == ""
    profile, base = split_profile("profile:generic@intel")
    assert (profile.name, base) == ("generic", "intel")


@pytest.mark.parametrize("name", ["", "mali", "../mali-g76", "mali-g76.toml"])
def test_an_unknown_one_names_those_that_there_are(name: str):
    with pytest.raises(InputError, match="is not known; there are adreno-6xx, amd-rdna2"):
        read_profile(name)


def test_a_device_with_smaller_groups_cannot_play_it():
    with pytest.raises(InputError, match="expected a device that allows work-groups of 384"):
        played(read_profile("mali-g76"), replace(POCL, max_work_group=256))


def test_gpus_keep_float16_and_processors_do_not():
    spec = read_profile("mali-g76").spec
    assert FLOAT16 in spec.stored & replace(spec, extensions=()).stored
    processor = replace(spec, device_class="cpu")
    assert FLOAT16 not in processor.stored
