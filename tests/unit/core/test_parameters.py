"""Parameters of devices that are given: checked, part of a device's name, and of what it is."""

from dataclasses import replace

import pytest

from retune.core.errors import InputError
from retune.core.parameters import named, parse_parameters, split_name, with_parameters
from retune.core.target import GENERIC_GPU
from retune.device.measure.lease import lock_path


def test_they_are_part_of_the_name():
    given = parse_parameters(["max_work_group=64", "max_local_bytes=32768"])
    name = named("gpu-0, gpu-1", given)
    assert name == (
        "gpu-0?max_local_bytes=32768&max_work_group=64,"
        "gpu-1?max_local_bytes=32768&max_work_group=64"
    )
    assert split_name(name.split(",")[0]) == ("gpu-0", given)
    assert named("gpu-0", {}) == "gpu-0" and split_name("gpu-0") == ("gpu-0", {})


def test_a_device_with_some_is_another_kind():
    given = {"max_local_bytes": 1024, "max_work_group": 64}
    spec = with_parameters(GENERIC_GPU, given)
    assert (spec.local_memory_bytes, spec.max_work_group) == (1024, 64)
    assert spec.l2_bytes == GENERIC_GPU.l2_bytes
    assert spec.name == "generic-gpu?max_local_bytes=1024&max_work_group=64"
    assert spec.fingerprint != GENERIC_GPU.fingerprint
    assert with_parameters(GENERIC_GPU, {}) is GENERIC_GPU


def test_it_is_not_measured_beside_the_device_that_computes():
    assert lock_path(with_parameters(GENERIC_GPU, {"l2_bytes": 0})) == lock_path(GENERIC_GPU)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("speed=1", "'speed=1': expected NAME=NUMBER with one of the names compute_units, "),
        ("max_work_group", "'max_work_group': expected NAME=NUMBER"),
        (
            "max_work_group=0",
            "expected a whole number from 1 to 65536 (work-items of a work-group)",
        ),
        ("max_local_bytes=-1", "expected a whole number from 0 to 1073741824"),
        ("max_local_bytes=32K", "got '32K'"),
        ("max_local_bytes=", "got ''"),
        ("max_local_bytes=٣", "got '٣'"),
        ("max_local_bytes=" + "9" * 5000, "expected a whole number from 0"),
    ],
)
def test_what_means_nothing_is_one_sentence(given: str, message: str):
    with pytest.raises(InputError) as caught:
        parse_parameters([given])
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_each_is_given_once():
    with pytest.raises(InputError, match="expected l2_bytes once, got it twice"):
        parse_parameters(["l2_bytes=1", "l2_bytes=1"])


def test_images_may_be_smaller_than_the_device_allows():
    spec = replace(GENERIC_GPU, image_width=2048, image_height=2048)
    assert with_parameters(spec, {"image_height": 8, "image_reads": 1}).image_height == 8
    with pytest.raises(InputError, match="'image_width=4096': expected at most 2048, what gen"):
        with_parameters(spec, {"image_width": 4096})


def test_no_more_items_than_the_device_allows():
    with pytest.raises(InputError, match="expected at most 1024, what generic-gpu allows"):
        with_parameters(GENERIC_GPU, {"max_work_group": 1025})
