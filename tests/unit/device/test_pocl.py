"""PoCL's environment and the repair of its processor name, on memory of our own."""

import ctypes
import os

import pytest

from retune.device import pocl


def test_threads_are_pinned_where_every_core_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    environ: dict[str, str] = {}
    pocl.prepare_environment(environ)
    assert environ == {"POCL_AFFINITY": "1"}


def test_threads_are_not_pinned_in_a_smaller_set_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3})
    environ: dict[str, str] = {}
    pocl.prepare_environment(environ)
    assert environ == {}


def test_the_users_choice_of_pinning_stays() -> None:
    environ = {"POCL_AFFINITY": "0"}
    pocl.prepare_environment(environ)
    assert environ == {"POCL_AFFINITY": "0"}


def test_a_processor_that_the_compiler_does_not_know_gets_a_name_it_knows() -> None:
    name = ctypes.create_string_buffer(b"generic")
    struct = (ctypes.c_uint64 * 400)()
    struct[7] = 12345
    struct[80] = ctypes.addressof(name)
    assert pocl.repair_processor(ctypes.addressof(struct), "haswell")
    assert ctypes.string_at(struct[80]) == b"haswell"
    assert struct[7] == 12345


def test_a_struct_without_an_unknown_processor_is_left_alone() -> None:
    struct = (ctypes.c_uint64 * 400)(*range(400))
    assert not pocl.repair_processor(ctypes.addressof(struct), "haswell")
    assert list(struct) == list(range(400))


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (
            "avx avx2 fma bmi2 avx512f avx512bw avx512dq avx512vl avx512cd avx512_vnni",
            "cascadelake",
        ),
        ("avx avx2 fma bmi2 avx512f avx512bw avx512dq avx512vl avx512cd", "skylake-avx512"),
        ("avx avx2 fma bmi2", "haswell"),
        ("avx", "sandybridge"),
        ("sse2", "x86-64"),
    ],
)
def test_the_name_promises_no_instruction_that_is_missing(flags: str, name: str) -> None:
    assert pocl.processor_name(frozenset(flags.split())) == name
