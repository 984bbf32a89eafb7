"""What can be known to be wrong with a request before anything is done for it."""

from math import isfinite
from pathlib import Path

from retune.bundle.versions import check_publishable
from retune.core.errors import InputError
from retune.core.files import check_file, check_folder
from retune.device.opening import is_absent
from retune.pipeline.manifest import TuneRequest
from retune.pipeline.quantization import check_quantization
from retune.search.allocate import check_allocator
from retune.search.tuners import check_tuner


def check_request(request: TuneRequest) -> None:
    """Its numbers are in range, its names known, and its folders can be written to.

    The model and the device are looked up by the first stages. Raises: InputError.
    """
    if is_absent(request.device):
        _check_absent(request)
    if request.trials is not None and request.trials < 0:
        raise InputError(f"trials: expected 0 or more, got {request.trials}")
    if request.minutes is not None and not (isfinite(request.minutes) and request.minutes > 0):
        raise InputError(
            f"minutes: expected more than 0, got {request.minutes:g}; trials 0 measures nothing"
        )
    if not (isfinite(request.max_error) and request.max_error >= 0):
        raise InputError(
            f"max_error: expected 0 or more, as a part of the output's range, got "
            f"{request.max_error:g}; 0 allows direct convolutions only"
        )
    for name in ("seed", "patience"):
        if getattr(request, name) < 0:
            raise InputError(f"{name}: expected 0 or more, got {getattr(request, name)}")
    if request.publish not in ("always", "faster"):
        raise InputError(f"publish: expected always or faster, got {request.publish!r}")
    check_tuner(request.tuner)
    check_quantization(request)
    check_allocator(request.allocator)
    for what, folder in (
        ("out", request.out),
        ("records", request.records),
        ("RETUNE_CACHE", request.work),
    ):
        check_folder(what, Path(folder))
    check_file("out", request.report)
    check_publishable(Path(request.out))


def _check_absent(request: TuneRequest) -> None:
    """Nothing is measured on a device that is not here. Raises: InputError."""
    if request.trials != 0:
        raise InputError(
            f"device {request.device}: expected --trials 0, as a profile's device is not here to "
            "measure on; that compiles default schedules for it"
        )
    if request.publish != "always":
        raise InputError(
            f"device {request.device}: expected --publish always, as no bundle can be timed there"
        )
