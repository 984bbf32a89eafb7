"""`retune devices`: what can be tuned for on this machine, or in a farm."""

from dataclasses import asdict

from retune_cli.commands.farm import Certs, Scheduler, print_boards
from retune_cli.console import print_json, print_table, say
from retune_cli.options import Json


def devices(scheduler: Scheduler = "", certs: Certs = None, json: Json = False) -> None:
    """List the OpenCL devices of this machine, or with --scheduler the keys of a farm's boards."""
    if scheduler:
        print_boards(scheduler, certs, json=json)
        return
    from retune.device.catalogue import driver_problems, list_devices

    found = list_devices()
    for problem in driver_problems():
        say(problem)
    if json:
        print_json([asdict(spec) for spec in found])
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
    print_table(rows, "devices")
