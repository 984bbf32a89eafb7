"""`retune farm`: a scheduler, boards, and the certificates of those who take part."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from retune.cli.console import print_json, print_line, print_table, say
from retune.cli.options import device_names
from retune.core.config import knob
from retune.core.errors import InputError
from retune.core.files import check_folder

app = typer.Typer(
    name="farm", help="Run a farm: a scheduler and boards that share it.", no_args_is_help=True
)

SCHEDULER_HELP = "Address of a farm's scheduler: tls://HOST:8786. Default: RETUNE_SCHEDULER."
Scheduler = Annotated[str, typer.Option(help=SCHEDULER_HELP, show_default=False)]
Certs = Annotated[
    Path | None,
    typer.Option(
        help="Folder with ca.pem, cert.pem and key.pem. Default: RETUNE_CERTS.", show_default=False
    ),
]
Device = Annotated[
    str,
    typer.Option(
        help="Device: one of `retune devices`, or farm:KEY. Default: the bundle's own.",
        show_default=False,
        autocompletion=device_names,
    ),
]
MostMb = Annotated[float, typer.Option(help="Largest accepted message, in MiB.")]


@app.command()
def scheduler(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any that is free.")
    ] = 8786,
    certs: Certs = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Run without TLS, on this machine alone.")
    ] = False,
    most_mb: MostMb = 1024.0,
    board_timeout: Annotated[
        float, typer.Option(min=1.0, help="Timeout of a silent board, in seconds.")
    ] = 30.0,
) -> None:
    """Send batches to boards, until it is stopped."""
    from retune.device.remote.wire import most_bytes_of
    from retune.farm.logs import log_lines
    from retune.farm.scheduler import run_scheduler

    log_lines()
    run_scheduler(
        host,
        port,
        certs=certs,
        plain=plain,
        most_bytes=most_bytes_of(most_mb),
        board_timeout_s=board_timeout,
    )


@app.command()
def serve(
    key: Annotated[
        str, typer.Option(help="Key by which clients ask for the board, such as rk3399.")
    ],
    scheduler: Scheduler = "",
    device: Annotated[
        str,
        typer.Option(
            help="Device of this machine that measures: one of `retune devices`.",
            autocompletion=device_names,
        ),
    ] = "pocl",
    name: Annotated[str, typer.Option(help="Name of the board. Default: the host's.")] = "",
    certs: Certs = None,
    listen: Annotated[
        int, typer.Option(min=0, max=65535, help="Port for the scheduler; 0: any that is free.")
    ] = 0,
    most_mb: MostMb = 1024.0,
) -> None:
    """Serve as a board: measure what the scheduler sends.

    Until it is stopped.
    """
    from retune.device.remote.wire import most_bytes_of
    from retune.farm.logs import log_lines
    from retune.farm.serve import BoardSettings, serve

    log_lines()
    serve(
        BoardSettings(
            key=key,
            scheduler=address_of(scheduler),
            device=device,
            name=name,
            certs=certs,
            port=listen,
            most_bytes=most_bytes_of(most_mb),
        )
    )


@app.command()
def certs(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of the farm's authority.")
    ],
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name", help="Name on a certificate. Repeatable. Default: scheduler, board, client."
        ),
    ] = None,
    role: Annotated[
        Literal["scheduler", "board", "client"] | None,
        typer.Option(
            help="Role: scheduler, board, client. Default: as the name says.", show_default=False
        ),
    ] = None,
) -> None:
    """Make an authority and certificates.

    Each admits its holder in one role: scheduler, board or client.
    """
    check_folder("farm", folder)
    from retune.device.remote.security import ROLES
    from retune.farm.certs import make_certs

    made = make_certs(folder, name or ROLES, role)
    for home in made:
        print_line(f"{home}: ca.pem, cert.pem, key.pem")
    if not made:
        print_line(f"{folder}: all of them are there")
    print_line(f"keep {folder / 'ca-key.pem'} here; copy each folder to those who take part")


@app.command()
def revoke(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of the farm's authority.")
    ],
    names: Annotated[
        list[str],
        typer.Argument(
            help="Certificates to revoke: their folders' names, or serial numbers.",
            metavar="NAME",
        ),
    ],
) -> None:
    """Revoke certificates.

    Those who have the list refuse their holders.
    """
    from retune.farm.certs import revoke as revoke_certs

    for path in revoke_certs(folder, names):
        print_line(f"{path}: {', '.join(names)}")
    print_line(
        "copy the list to where a scheduler's certificate lies elsewhere; it is read at once"
    )


def print_boards(scheduler: str, certs: Path | None, *, json: bool) -> None:
    """The table of a farm's keys."""
    use_certs(certs)
    from retune.device.remote.link import Link

    link = Link(address_of(scheduler))
    try:
        boards = link.boards()
    finally:
        link.close()
    rows = [asdict(row) for row in boards.table()]
    if json:
        names = [
            {"board": b.name, "key": b.key, "model": b.about.spec.model, "jobs": b.jobs}
            for b in boards.found
        ]
        print_json({"keys": rows, "boards": names})
        return
    if not rows:
        say(f"{link.address}: no board is there")
    print_table(rows, f"boards at {link.address}")


def farm_device(device: str, scheduler: str, certs: Path | None) -> str:
    """The device's name, whole; what is not of a farm stays as it is.

    Raises: InputError for a scheduler without a farm's device, or a name that is none.
    """
    from retune.device.remote.names import farm_name, is_farm

    if not is_farm(device):
        if scheduler:
            raise InputError(
                f"--scheduler {scheduler}: expected a device farm:KEY with it, got {device!r}"
            )
        return device
    use_certs(certs)
    return str(farm_name(device if "@" in device or not scheduler else f"{device}@{scheduler}"))


def address_of(scheduler: str) -> str:
    """What was given, or what RETUNE_SCHEDULER says. Raises: InputError if there is neither."""
    address = scheduler or knob("RETUNE_SCHEDULER")
    if not address:
        raise InputError(
            "--scheduler: expected the address of a farm's scheduler, got none; write "
            "--scheduler tls://HOST:8786, or set RETUNE_SCHEDULER"
        )
    return address


def use_certs(certs: Path | None) -> None:
    """This process, and those that it starts, have these certificates."""
    if certs is not None:
        os.environ["RETUNE_CERTS"] = str(certs.resolve())
