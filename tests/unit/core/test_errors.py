"""Which failures may pass when the same is tried again."""

import errno

import pytest

from retune.core.errors import (
    BusyError,
    CodegenError,
    DeviceError,
    InputError,
    LookupFailed,
    ModelError,
    RecordError,
    RetuneError,
    RunStopped,
    ScheduleError,
    VerifyError,
    may_pass,
)
from retune.device.child import ChildLostError
from retune.device.runtime import BuildFailed, LaunchFailed

PASSING = [
    *("ENOSPC", "EDQUOT", "ENOMEM", "EMFILE", "ENFILE", "EAGAIN", "EBUSY", "EINTR", "EIO"),
    *("ETIMEDOUT", "ECONNRESET", "ECONNREFUSED", "EPIPE", "ESTALE", "ENOLCK", "ETXTBSY"),
]
PERMANENT = [
    *("EACCES", "EPERM", "EROFS", "ENOENT", "EISDIR", "ENOTDIR", "ENAMETOOLONG", "EEXIST"),
    *("ENOTEMPTY", "EXDEV", "ELOOP", "EINVAL", "EBADF", "ENODEV"),
]


@pytest.mark.parametrize("name", PASSING)
def test_system_errors_that_may_pass(name: str):
    assert may_pass(OSError(getattr(errno, name), "why"))


@pytest.mark.parametrize("name", PERMANENT)
def test_system_errors_that_stay(name: str):
    assert not may_pass(OSError(getattr(errno, name), "why"))


@pytest.mark.parametrize(
    "error",
    [
        DeviceError("lost"),
        ChildLostError("crash", "the process died of SIGSEGV"),
        LaunchFailed("out of resources"),
        BusyError("another process is at it"),
        MemoryError(),
        TimeoutError(),
        ConnectionResetError(),
    ],
)
def test_others_that_may_pass(error: Exception):
    assert may_pass(error)


@pytest.mark.parametrize(
    "error",
    [
        RetuneError("no"),
        InputError("no"),
        LookupFailed("no such name"),
        ModelError("no such op"),
        RecordError("damaged"),
        RunStopped("by hand"),
        ScheduleError("not legal"),
        VerifyError("wrong"),
        CodegenError("cannot be printed"),
        BuildFailed("syntax error"),
        OSError("an unknown cause"),
        PermissionError("an unknown cause"),
        ZeroDivisionError(),
        KeyboardInterrupt(),
    ],
)
def test_others_that_stay(error: BaseException):
    assert not may_pass(error)
