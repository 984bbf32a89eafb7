"""Bundles as C programs: built without a warning, and run on PoCL, they compute the same."""

import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from importlib.resources import files
from math import inf
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from retune.api import import_network
from retune.bundle.build import build_plan
from retune.bundle.export.loader import brought_link
from retune.bundle.export.program import export_c
from retune.bundle.plan import Form, NetworkPlan
from retune.bundle.runtime.module import Module
from retune.codegen.target import ONE_BASE
from retune.device.opencl.catalogue import opencl
from retune.device.opencl.runtime import Device, open_device
from retune.intrinsics import intrinsics
from retune.search.extract import Network
from tests.device import c_programs
from tests.support.bundle import plan_of as halves
from tests.support.control_groups import LIMITS, write_groups
from tests.support.device_networks import Net
from tests.support.pages import ROOT

pytestmark = pytest.mark.device


@pytest.fixture(scope="module")
def pocl() -> Device:
    return open_device("pocl")


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Network:
    """A layer and what it feeds, an output of integers, and a table read by indices."""
    net = Net("small")
    x, y = net.input(1, 24), net.input(1, 16)
    ones = net.stored(np.ones(16, "f4"))
    hidden = net("Relu", net("Gemm", x, net.weight(16, 24), ones, transB=1))
    path = tmp_path_factory.mktemp("net") / "small.onnx"
    index = net.input(3, element=TensorProto.INT64)
    rows = net("Gather", net.weight(8, 4), index)
    onnx.save(net.model(net("Add", hidden, y), net("ArgMax", hidden, axis=1), rows), path)
    return import_network(str(path), cache=path.parent).network


@pytest.fixture(scope="module")
def small(pocl: Device, network: Network) -> NetworkPlan:
    return build_plan(network, {}, pocl.spec, model_key="0", notes={})


@pytest.fixture(scope="module")
def program(small: NetworkPlan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = export_c(small, tmp_path_factory.mktemp("c") / "small")
    c_programs.build(folder)
    return folder


def test_workers_compute_the_same(small: NetworkPlan, program: Path, pocl: Device) -> None:
    c_programs.agrees(Module(small, pocl), program)
    said = c_programs.run(program, "--runs", "1").stdout
    assert re.search(r"a persistent kernel", said)
    assert re.search(r"time    [\d.]+ ms median", said)
    assert re.search(r"memory  [\d.]+ MB on the device, [\d.]+ MB at the peak", said)


def test_one_thread_computes_the_same(small: NetworkPlan, pocl: Device, tmp_path: Path) -> None:
    plan = replace(small, form="inline")
    folder = export_c(plan, tmp_path / "c")
    c_programs.build(folder)
    c_programs.agrees(Module(plan, pocl), folder)
    assert "one thread" in c_programs.run(folder).stdout


@pytest.mark.parametrize("form", ["persistent", "queued"])
def test_launches_compute_the_same(pocl: Device, tmp_path: Path, form: Form) -> None:
    """Kernels that workers cannot run; aliases, shared memory, two outputs, raw files."""
    plan = replace(halves(pocl.spec), form=form)
    folder = export_c(plan, tmp_path / "c")
    c_programs.build(folder)
    module = Module(plan, pocl)
    c_programs.agrees(module, folder)
    feeds = module.random_inputs(seed=1)
    (folder / "x.raw").write_bytes(feeds["x"].tobytes())
    done = c_programs.run(folder, "--input", "x=x.raw", "--output", "high=high.raw")
    assert done.returncode == 0 and "launches in a queue" in done.stdout
    assert (folder / "high.raw").read_bytes() == module.run(feeds)["high"].tobytes()


@pytest.mark.parametrize("offers", [pytest.param((), marks=pytest.mark.slow), (ONE_BASE,)])
def test_the_ways_of_a_gpu_compute_the_same(
    network: Network, offers: tuple[str, ...], tmp_path: Path
) -> None:
    """Kernels for a GPU, in memory that has addresses, on PoCL that passes for one."""
    passing = open_device("pocl")
    passing.spec = replace(passing.spec, device_class="gpu", instructions=offers)
    plan = build_plan(network, {}, passing.spec, model_key="0", notes={})
    based = "uchar* base" in plan.text
    assert based == bool(offers)
    folder = export_c(plan, tmp_path / "c")
    c_programs.build(folder, "PASS_FOR_GPU")
    c_programs.agrees(Module(plan, passing), folder)
    assert "launches in a queue" in c_programs.run(folder).stdout


def test_the_program_of_the_page_calls_the_network(pocl: Device, tmp_path: Path) -> None:
    (text,) = re.findall(r"```c\n(.*?)```", (ROOT / "docs/bundles.md").read_text(), re.DOTALL)
    mlp = import_network("zoo:mlp", cache=tmp_path).network
    plan = build_plan(mlp, {}, pocl.spec, model_key="0", notes={})
    folder = export_c(plan, tmp_path / "c")
    (folder / "app.c").write_text(text)
    c_programs.build(folder, target="app")
    done = subprocess.run(["./app"], cwd=folder, capture_output=True, text=True, check=True)
    with Module(plan, pocl) as module:
        expected = module.run(np.zeros((1, 784), np.float32))[0][0]
    assert done.stdout.splitlines() == [f"{i}: {p:g}" for i, p in enumerate(expected)]


def test_a_problem_is_one_sentence(program: Path) -> None:
    np.save(program / "wide.npy", np.zeros((1, 25), np.float32))
    np.save(program / "double.npy", np.zeros((1, 24)))
    np.save(program / "far.npy", np.array([-8, 7, 8]))
    (program / "short.raw").write_bytes(b"1234")
    (program / "cut.npy").write_bytes((program / "wide.npy").read_bytes()[:40])
    for words, code, expected in (
        (["--input", "x0=none.npy"], 1, "none.npy: expected a file that can be read: No such"),
        (["--input", "x0=wide.npy"], 1, "expected <f4 of shape (1, 24) in C order for x0"),
        (["--input", "x0=double.npy"], 1, "expected <f4 of shape (1, 24) in C order for x0"),
        (["--input", "x0=short.raw"], 1, "expected 96 bytes of numbers for x0"),
        (["--input", "x0=cut.npy"], 1, "expected a whole .npy file"),
        (["--input", "x2=far.npy"], 1, "x2: expected indices from -8 to 7; got 8; give an index"),
        (["--input", "z=short.raw"], 2, "expected NAME=FILE, with a name of network.h"),
        (["--output", "x0=y.npy"], 2, "expected NAME=FILE, with a name of network.h"),
        (["--runs", "0"], 2, "expected a number from 1 on"),
        (["--runs"], 2, "expected an option and its value; --help lists"),
        (["--speed", "9"], 2, "there is no such option"),
        (["--device", "fpga"], 1, "device fpga: there is no such device; --list shows"),
        (["--device", "99"], 1, "device 99: there is no such device; --list shows"),
        (["--folder", "/nowhere"], 1, "/nowhere/weights.bin: expected a file that can be read"),
    ):
        done = c_programs.run(program, *words)
        assert done.returncode == code, (words, done)
        assert done.stderr.startswith("network: ") and expected in done.stderr, (words, done.stderr)
        assert done.stderr.count("\n") == 1


def test_a_library_that_does_not_know_where_pocl_is_ends_nothing_by_a_signal(
    small: NetworkPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyopencl's copies a variable that is not set."""
    plain = c_programs.brought_link().partition(" -DPYOPENCL_HOME")[0]
    monkeypatch.delenv("PYOPENCL_HOME", raising=False)
    monkeypatch.setattr(c_programs, "brought_link", lambda: plain)
    folder = export_c(small, tmp_path / "c")
    c_programs.build(folder)
    done = c_programs.run(folder, "--list")
    assert done.returncode in (0, 1)  # 0: of another driver of this machine
    assert done.returncode == 0 or "no OpenCL driver is installed" in done.stderr


@pytest.mark.parametrize("name", ["weights.bin", "kernels.cl"])
@pytest.mark.parametrize("more", [False, True])
def test_a_damaged_part_is_one_sentence(
    small: NetworkPlan, program: Path, tmp_path: Path, name: str, more: bool
) -> None:
    folder = export_c(small, tmp_path / "c")
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole + b" " if more else whole[:-1])
    done = c_programs.run(program, "--folder", str(folder))
    assert done.returncode == 1
    assert re.search(rf"network: {folder}/{name}: expected \d+ bytes, got .*; export", done.stderr)


def test_files_may_have_equals_signs_in_their_names(
    small: NetworkPlan, program: Path, pocl: Device
) -> None:
    module = Module(small, pocl)
    feeds = module.random_inputs()
    words: list[str] = []
    for name, array in feeds.items():
        np.save(program / f"a={name}.npy", array)
        words += ["--input", f"{name}=a={name}.npy"]
    name, expected = next(iter(module.run(feeds).items()))
    done = c_programs.run(program, *words, "--output", f"{name}=b=c.npy", "--runs", "1")
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(program / "b=c.npy"), expected)


def test_a_device_of_any_name_ends_no_sentence(small: NetworkPlan, tmp_path: Path) -> None:
    """What a bundle says of its device is text, and no format of printf."""
    kernel, *others = small.kernels
    way = next(
        entry.full_name(entry.implementations[0])
        for entry in intrinsics()
        if len(entry.implementations) > 1
    )
    kernels = (replace(kernel, intrinsics=(way,)), *others)
    device = replace(small.device, model="100% new %s%s%n")
    folder = export_c(replace(small, kernels=kernels, device=device), tmp_path / "c")
    assert way in (folder / "network.h").read_text()
    c_programs.build(folder)
    done = c_programs.run(folder)
    assert done.returncode == 1
    assert f"the kernels use {way}, which 100% new %s%s%n has; tune" in done.stderr


@pytest.mark.slow
def test_memory_that_was_used_before_is_cleared(tmp_path: Path) -> None:
    """The first run compiles, on whatever is there: that may be no valid index."""
    net = Net("rows")
    onnx.save(
        net.model(net("Gather", net.weight(8, 4), net.input(3, element=TensorProto.INT64))),
        tmp_path / "rows.onnx",
    )
    passing = open_device("pocl")
    passing.spec = replace(passing.spec, device_class="gpu", instructions=())
    network = import_network(str(tmp_path / "rows.onnx"), cache=tmp_path).network
    folder = export_c(
        build_plan(network, {}, passing.spec, model_key="0", notes={}), tmp_path / "c"
    )
    (folder / "dirty.c").write_text(_DIRTY)
    c_programs.build(folder, "PASS_FOR_GPU", more="dirty.c -Wl,--wrap=clSVMAlloc")
    done = c_programs.run(folder, "--runs", "1")
    assert done.returncode == 0, done


_DIRTY = """
#include <stddef.h>
#include <string.h>
struct _cl_context;
void *__real_clSVMAlloc(struct _cl_context *, unsigned long, size_t, unsigned);
void *__wrap_clSVMAlloc(struct _cl_context *, unsigned long, size_t, unsigned);
void *__wrap_clSVMAlloc(struct _cl_context *c, unsigned long flags, size_t bytes, unsigned align) {
  void *memory = __real_clSVMAlloc(c, flags, bytes, align);
  return memory ? memset(memory, 0x7f, bytes) : memory;
}
"""
"""Shared memory as it may be where somebody had it before."""


def test_devices_are_listed(program: Path) -> None:
    done = c_programs.run(program, "--list")
    assert done.returncode == 0 and "Portable Computing Language: pthread" in done.stdout


def test_control_groups_limit_the_cores(program: Path, tmp_path: Path) -> None:
    """As in Python: a container with the time of two cores has two threads on any machine."""
    for file in (*program.glob("*.c"), *program.glob("*.h")):
        shutil.copy(file, tmp_path)
    (tmp_path / "limit.c").write_text(
        '#include "network.c"\nint main(void) { return printf("%g", quota_cores()) < 0; }\n'
    )
    defines = ["-DWITHOUT_MAIN", '-DCONTROL_GROUPS="groups"', '-DOWN_GROUP="own"']
    command = ["cc", "-std=c99", *c_programs.FLAGS.split(), *defines, "limit.c", "-o", "limit"]
    link = shlex.split(brought_link())
    subprocess.run([*command, *link], cwd=tmp_path, check=True)
    for texts, own, cores in LIMITS:
        shutil.rmtree(tmp_path / "groups", ignore_errors=True)
        write_groups(tmp_path, texts, own)
        said = subprocess.run(["./limit"], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert float(said.stdout) == (0.0 if cores == inf else cores), texts


def test_the_numbers_of_opencl_are_right() -> None:
    """What network.c declares for machines without OpenCL's headers, beside pyopencl's."""
    cl = opencl()
    text = files("retune.bundle.export").joinpath("network.c").read_text(encoding="utf-8")
    stated = {n: int(v, 0) for n, v in re.findall(r"#define CL_(\w+) (0x\w+|\d+)\n", text)}
    kinds = {
        "PLATFORM_": cl.platform_info,
        "DEVICE_TYPE_": cl.device_type,
        "DEVICE_SVM_": cl.device_svm_capabilities,
        "DEVICE_ATOMIC_": cl.device_atomic_capabilities,
        "DEVICE_": cl.device_info,
        "DRIVER_": cl.device_info,
        "MEM_SVM_": cl.svm_mem_flags,
        "MEM_": cl.mem_flags,
        "PROGRAM_BUILD_": cl.program_build_info,
        "KERNEL_": cl.kernel_info,
    }
    checked = 0
    for name, number in stated.items():
        for prefix, kind in kinds.items():
            short = name.removeprefix(prefix)
            own = next((n for n in (name, f"SVM_{short}", short) if hasattr(kind, n)), None)
            if name.startswith(prefix) and own is not None:
                assert getattr(kind, own) == number, name
                checked += 1
                break
    assert checked >= 20, (checked, stated)


@pytest.mark.slow
def test_resnet18_computes_the_same(pocl: Device, tmp_path: Path) -> None:
    network = import_network("zoo:resnet18_v1", cache=tmp_path)
    plan = build_plan(network.network, {}, pocl.spec, model_key="0", notes={})
    folder = export_c(plan, tmp_path / "c")
    c_programs.build(folder)
    c_programs.agrees(Module(plan, pocl), folder)
