"""The one exception tree.

A message says where, what was expected, what was found, and what to do. `exit_code` is what the
command line ends with: 2 for bad input (the user can mend it), 1 for a run that failed.
"""

from collections.abc import Sequence


class RetuneError(Exception):
    """Base of every error that retune raises on purpose."""

    exit_code = 1


class InputError(RetuneError):
    """The user's input cannot be used: a file, an option, a name."""

    exit_code = 2


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
    """An OpenCL device is missing, or refused a request."""


class RecordError(InputError):
    """A record file or bundle is damaged, or of a newer version than this program reads."""


class LookupFailed(InputError):
    """A name is not known; the message lists close ones."""
