"""`retune devices`: what can be tuned for here or in a farm, and which profiles there are."""

from typing import Annotated

import typer

from retune.cli.commands.farm import Certs, print_boards
from retune.cli.console import print_json, print_table, say
from retune.cli.options import Json
from retune.core.errors import InputError

Scheduler = Annotated[
    str,
    typer.Option(
        help="Address of a farm's scheduler, to list its boards: tls://HOST:8786.",
        show_default=False,
    ),
]
Profiles = Annotated[
    bool,
    typer.Option("--profiles", help="Print the parameters of the profiles, each with its source."),
]


def devices(
    scheduler: Scheduler = "",
    certs: Certs = None,
    profiles: Profiles = False,
    json: Json = False,
) -> None:
    """List the devices of this machine or of a farm.

    This machine's OpenCL devices, the simulated accelerator, and profiles of devices that are not
    here; with --scheduler, the keys of a farm's boards.
    """
    if certs is not None and not scheduler:
        raise InputError(f"--certs {certs}: expected --scheduler beside it, got none")
    if scheduler and profiles:
        raise InputError("--profiles and --scheduler: expected one of them, got both")
    if scheduler:
        print_boards(scheduler, certs, json=json)
        return
    if profiles:
        _print_sources(json=json)
        return
    from retune.device.opencl.catalogue import driver_problems, list_devices
    from retune.device.opening import list_simulated

    found = (*list_devices(), *list_simulated())
    for problem in driver_problems():
        say(problem)
    if json:
        print_json(found)
        return
    rows = [
        {
            "device": spec.name,
            "model": spec.model,
            "class": spec.device_class,
            "units": spec.compute_units,
            "vector bits": spec.vector_bits,
            "memory GiB": round(spec.global_memory_bytes / 2**30, 1),
            "instructions": ", ".join(spec.instructions) or "none",
            "OpenCL": " ".join(spec.opencl.split()[:2]),
            "driver": spec.driver,
        }
        for spec in found
    ]
    print_table(rows, "devices", optional=("driver", "OpenCL", "memory GiB", "vector bits"))
    _print_profiles()


def _print_profiles() -> None:
    from retune.core.dtypes import FLOAT16, FLOAT32, FLOAT64
    from retune.device.profiles import profile_names, read_profile

    optional = (FLOAT16, FLOAT64)  # types that a device need not have
    specs = [read_profile(name).spec for name in profile_names()]
    rows = [
        {
            "profile": spec.name,
            "model": spec.model,
            "units": spec.compute_units,
            "work-items": spec.max_work_group,
            "local KiB": spec.local_memory_bytes / 1024,
            "types": ", ".join((FLOAT32, *(t for t in optional if not spec.lacking(t)))),
            "OpenCL": spec.opencl.split()[-1],
        }
        for spec in specs
    ]
    print_table(
        rows,
        "profiles: bundles are compiled for them with --trials 0",
        optional=("local KiB", "work-items", "types"),
    )


def _print_sources(*, json: bool) -> None:
    from retune.device.profiles import profile_names, read_profile

    rows = [
        {"profile": profile.name, "parameter": name, "value": fact.value, "source": fact.source}
        for profile in map(read_profile, profile_names())
        for name, fact in profile.facts.items()
    ]
    if json:
        print_json(rows)
        return
    print_table([{**row, "value": _text(row["value"])} for row in rows], "profiles")


def _text(value: object) -> str:
    return ", ".join(value) or "none" if isinstance(value, tuple) else str(value)
