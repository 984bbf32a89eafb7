"""Candidates of a network's tasks under a profile: their limits held, and their results right.

Limits are counted from the printed text, which knows nothing of how the rules count them.
"""

import re
from collections.abc import Iterable
from math import prod

import numpy as np

from retune.codegen.lower import lower
from retune.codegen.source import ProgramSource
from retune.core.dtypes import TensorType
from retune.core.target import MOST_DEEP_ITEMS, MOST_GROUPS, DeviceSpec
from retune.device.measure.timing import ExpectedOutputs
from retune.device.opencl.runtime import Device
from retune.device.opening import open_device
from retune.search.task import Task
from retune.targets.devices import target_of
from tests.support.oracle import run_source, unoptimised

_LOCAL = re.compile(r"^\s*__local (\w+?)(\d*) \w+\[(\d+)\]", re.MULTILINE)
_BYTES = {"float": 4, "int": 4, "uint": 4, "ushort": 2, "char": 1, "uchar": 1, "double": 8}


class Checker:
    """Runs candidates on PoCL; a program that several profiles have is run once."""

    def __init__(self) -> None:
        self._devices: dict[str, Device] = {}
        self._right: set[str] = set()
        self.programs = 0
        self.run = 0

    def check(self, profile: str, tasks: Iterable[Task], each: int) -> None:
        """`each` random candidates of each task hold every limit of the profile, and are right.

        Every profile has others.
        """
        device = self._devices.setdefault(profile, open_device(f"profile:{profile}@pocl"))
        for task in tasks:
            space = task.space(device.spec)
            rows = space.sample(each, np.random.default_rng([*profile.encode()]))
            assert len(rows), task.name
            workload = task.workload()
            for index in range(len(rows)):
                candidate = space.candidate(rows, index)
                source = lower(space.instantiate(candidate), target_of(device.spec))
                where = f"{profile}: {task.name}: {space.trace(candidate)}"
                self.programs += 1
                check_limits(source, device.spec, where)
                if source.key in self._right:
                    continue
                kinds = {n: TensorType(a.shape, a.dtype.name) for n, a in workload.outputs.items()}
                found = run_source(device, unoptimised(source), workload.inputs, kinds)
                expected = ExpectedOutputs.of(workload.outputs, workload.rtol, workload.atol)
                off = expected.deviation(found)
                assert not off.problem, f"{where}: {off.problem}\n{source.text}"
                self._right.add(source.key)
                self.run += 1


def check_limits(source: ProgramSource, spec: DeviceSpec, where: str) -> None:
    """No kernel of the program has more items, groups or local memory than the device allows, nor
    an image that is larger, or where none is wanted."""
    images = [(b.image, b.elements // (4 * b.image)) for b in source.buffers if b.image]
    assert all(w <= spec.image_width and h <= spec.image_height for w, h in images), where
    assert ("image2d_t" in source.text) == bool(images) and (spec.image_reads or not images), where
    for kernel, launch in source.runs:
        assert prod(launch.local_size) <= spec.max_work_group, where
        assert max(launch.local_size[2:], default=1) <= MOST_DEEP_ITEMS, where
        groups = [g // n for g, n in zip(launch.global_size, launch.local_size, strict=True)]
        assert max(groups[1:], default=1) <= MOST_GROUPS, where
        assert local_bytes(kernel.text) <= spec.local_memory_bytes, where


def local_bytes(text: str) -> int:
    """Bytes of the arrays in local memory that a kernel's text declares."""
    declared = _LOCAL.findall(text)
    assert len(declared) == len(re.findall(r"^\s*__local [^;()]*\[", text, re.MULTILINE)), text
    return sum(_BYTES[kind] * int(lanes or 1) * int(count) for kind, lanes, count in declared)
