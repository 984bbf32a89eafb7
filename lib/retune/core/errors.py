"""The one exception tree.

A message says where, what was expected, what was found, and what to do. `exit_code` is what the
command line ends with: 2 for bad input (the user can mend it), 1 for a run that failed. `may_pass`
says which errors are worth another try.
"""

import errno
import re
from collections.abc import Sequence
from typing import ClassVar

_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]|\n(?!  \S)")
"""What would end a line, or cannot be printed; but for lines of a list below the sentence, which
are indented."""

_QUOTED = re.compile(r"""'[^'\n]{400,}'|"[^"\n]{400,}\"""")
"""A text of a file, quoted whole: longer than a path is."""


def _shortened(found: re.Match[str]) -> str:
    """Its beginning and its end."""
    return f"{found[0][:120]}...{found[0][-60:]}"


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


class RetuneError(Exception):
    """Base of every error that retune raises on purpose."""

    exit_code = 1
    passes: ClassVar[bool] = False
    """True: what causes it may be gone by the next try, without anybody's help."""


class InputError(RetuneError):
    """The user's input cannot be used: a file, an option, a name.

    Its message is one short sentence, whatever is quoted in it: names in files may have line ends,
    or thousands of characters.
    """

    exit_code = 2

    def __init__(self, message: str = "") -> None:
        super().__init__(_QUOTED.sub(_shortened, _CONTROL.sub(_escaped, message)))


class ModelError(InputError):
    """A model cannot be imported, or a graph is not valid."""


class ShapesMissing(ModelError):
    """A model leaves dimensions of its inputs open; `options` of a command line would bind them."""

    def __init__(self, message: str, options: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.options = tuple(options)


class ScheduleError(RetuneError):
    """A schedule primitive was used where it is not legal.

    Search catches exactly this class for an illegal candidate; anything else is a bug.
    """


class VerifyError(RetuneError):
    """A program breaks an invariant of the IR: a bug in a pass or primitive."""


class CodegenError(RetuneError):
    """A program cannot be printed as OpenCL C."""


class DeviceError(RetuneError):
    """An OpenCL device is missing, or refused a request: lost, busy, or short of memory."""

    passes = True


class RunStopped(RetuneError):
    """Somebody ended the run on purpose; what is finished is kept."""


class BusyError(RetuneError):
    """Another process is at it, and the caller did not want to wait for it."""

    passes = True


class RecordError(InputError):
    """A record file or bundle is damaged, or of a newer version than this program reads."""


class LookupFailed(InputError):
    """A name is not known; the message lists close ones."""


_PASSING = frozenset(
    {
        # What others on the machine may give back: space, memory, files, locks, the device.
        *(errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOLCK),
        *(errno.EAGAIN, errno.EBUSY, errno.ETXTBSY, errno.EDEADLK, errno.EINTR, errno.EIO),
        # A network, or the file server behind it, that comes back.
        *(errno.ETIMEDOUT, errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.EPIPE),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ESTALE),
    }
)
"""Numbers of system errors with causes that may pass. Any other, such as a missing right or file,
is the same at the next try."""


def refuse_newer(where: str, what: str, version: int, most: int, otherwise: str = "") -> None:
    """Raises: RecordError for a version of something stored that only a newer retune reads.

    `otherwise` says what else may be done.
    """
    if version > most:
        raise RecordError(
            f"{where}: expected {what} {most} at most, got {version}; install a newer "
            f"retune{otherwise}"
        )


def may_pass(error: BaseException) -> bool:
    """True if the cause of the error may be gone by itself when the same is tried again.

    Memory counts like space on a disk: other programs have it, and give it back when they end. A
    system error without a number is not known to pass, unless its class says so.
    """
    match error:
        case RetuneError():
            return error.passes
        case MemoryError() | TimeoutError() | ConnectionError() | BlockingIOError():
            return True
        case OSError():
            return error.errno in _PASSING
        case _:
            return False


def sentence(error: object) -> str:
    """The first line of an error that was raised on purpose; of any other one also its class.

    Where that line announces a list, as `expected other parameters:`, the list's items follow it.
    What ends a process, such as Ctrl-C, is an interruption.
    """
    if isinstance(error, BaseException) and not isinstance(error, Exception):
        return "interrupted"
    first, *rest = str(error).strip().splitlines() or [""]
    items = [item for line in rest if (item := line.strip().removeprefix("- "))]
    text = f"{first} {', '.join(items)}" if first.endswith(":") and items else first
    return text if isinstance(error, RetuneError) and text else f"{type(error).__name__}: {text}"


_LONGEST_REASON = 200
"""Characters; what other libraries say may hold bytes of a damaged file, or a name again."""


def reason_of(error: Exception) -> str:
    """What the error says, as a short text of printable characters."""
    return ascii(str(error))[1:-1][:_LONGEST_REASON]
