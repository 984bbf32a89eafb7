"""`retune devices`: what can be tuned for on this machine."""

from dataclasses import asdict

from retune_cli.console import print_json, print_table, say
from retune_cli.options import Json


def devices(json: Json = False) -> None:
    """List the OpenCL devices of this machine, and the simulated accelerator."""
    from retune.device.catalogue import driver_problems, list_devices
    from retune.device.opening import list_simulated

    found = (*list_devices(), *list_simulated())
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
