"""Kernels of several programs in one."""

from dataclasses import replace

from retune.codegen.network.persistent import Callee
from retune.device.opencl.jobs import join_kernels

ADD = Callee(kernel="add", parameters=1, groups=(4, 1, 1))
PAD = replace(ADD, kernel="pad")


def test_equal_kernels_are_one():
    callees, texts = join_kernels([(PAD, "pad!"), (ADD, "add!"), (PAD, "pad!")])
    assert callees == [PAD, ADD, PAD]
    assert texts == ["pad!", "add!"]


def test_different_texts_of_a_name_are_kept_apart_and_stay_as_printed():
    callees, texts = join_kernels([(ADD, "first"), (ADD, "second"), (ADD, "third")])
    assert [callee.kernel for callee in callees] == ["add", "add_c1", "add_c2"]
    assert texts[0] == "first"
    assert texts[1].splitlines() == [
        "#define add add_c1",
        "#define add_group add_c1_group",
        "second",
        "#undef add",
        "#undef add_group",
    ]


def test_a_text_with_another_number_of_groups_is_another_kernel():
    wider = replace(ADD, groups=(8, 1, 1))
    callees, texts = join_kernels([(ADD, "same"), (wider, "same")])
    assert callees == [ADD, replace(wider, kernel="add_c1")]
    assert len(texts) == 2


def test_a_new_name_is_none_that_any_text_uses():
    callees, _ = join_kernels([(ADD, "float add_c1;"), (ADD, "float add_c2;")])
    assert [callee.kernel for callee in callees] == ["add", "add_c3"]


def test_a_kernel_that_has_the_new_name_of_another_gets_a_new_one_too():
    taken = replace(ADD, kernel="add_c1")
    callees, _ = join_kernels([(ADD, "one"), (ADD, "two"), (taken, "three")])
    names = [callee.kernel for callee in callees]
    assert names == ["add", "add_c1", "add_c1_c1"]
