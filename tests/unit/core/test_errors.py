"""Which failures may pass when the same is tried again."""

import copy
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
    sentence,
)
from retune.device.measure.child import ChildLostError
from retune.device.opencl.runtime import BuildFailed, LaunchFailed

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


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("plain: 'é' and \\n", "plain: 'é' and \\n"),
        ("node 'a\nb'", "node 'a\\nb'"),
        ("node '\x1b[2J\x00'", "node '\\x1b[2J\\x00'"),
        ("name '\ud800'", "name '\\ud800'"),
        ("missing:\n  Foo: 1 x\n  Bar: 2 x", "missing:\n  Foo: 1 x\n  Bar: 2 x"),
        ("missing:\n  \n\nFoo", "missing:\\n  \\n\\nFoo"),
    ],
)
def test_bad_input_is_one_printable_sentence_whatever_it_quotes(message: str, said: str):
    error = RecordError(message)
    assert str(error) == said
    assert str(copy.copy(error)) == said


def test_a_sentence_is_one_line_that_is_whole():
    assert sentence(InputError("model.onnx: expected a file\n  such as a.onnx")) == (
        "model.onnx: expected a file"
    )
    cut = "Flow run received invalid parameters:\n - minutes: more than 0\n - seed: an integer"
    assert sentence(ValueError(cut)) == (
        "ValueError: Flow run received invalid parameters: minutes: more than 0, seed: an integer"
    )
    assert sentence(KeyError()) == "KeyError: "


@pytest.mark.parametrize("quote", ["'", '"'])
def test_what_is_quoted_is_short(quote: str):
    long, path = quote + "x y" * 1000 + quote, quote + "/folder" * 50 + quote
    text = str(InputError(f"{path}: cron: expected five fields, got {long}; write five"))
    assert text.startswith(f"{path}: cron: expected five fields, got {quote}x yx y")
    assert text.endswith(f"x yx y{quote}; write five") and "..." in text
    assert len(text) < 700
