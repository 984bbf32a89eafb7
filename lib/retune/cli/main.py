"""The command line: `retune COMMAND`. One module of `retune.cli.commands` for each command.

Errors are one sentence on stderr: exit code 2 for what the user can mend (bad input, a full disk),
1 for a run that failed, 130 when interrupted. Importing this module is cheap; commands import what
they need when they run.
"""

import errno
import os
import shlex
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

from retune import __version__
from retune.cli.commands import (
    analysis,
    bench,
    build,
    devices,
    export,
    farm,
    generate,
    import_gguf,
    init,
    model,
    nightly,
    ops,
    pack,
    plan,
    prune,
    quantize,
    report,
    resume,
    rollback,
    run,
    tasks,
    tune,
    verify,
    vta,
)
from retune.cli.console import print_line, say
from retune.cli.grouped import GroupedCommand, GroupedCommands
from retune.core.config import cache_root
from retune.core.errors import InputError, RetuneError, ShapesMissing
from retune.core.extras import missing_extra

INTERRUPTED = 130

app = typer.Typer(
    name="retune",
    cls=GroupedCommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print_line(f"retune {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Tune neural networks for OpenCL devices: from an ONNX file to a fast bundle."""


_COMMANDS: Mapping[str, Sequence[tuple[str, Callable[..., None] | typer.Typer]]] = {
    "Tune a network": (
        ("tune", tune.tune),
        ("resume", resume.resume),
        ("quantize", quantize.quantize),
        ("import-gguf", import_gguf.import_gguf),
        ("devices", devices.devices),
    ),
    "Use a bundle": (
        ("build", build.build),
        ("run", run.run),
        ("generate", generate.generate),
        ("bench", bench.bench),
        ("verify", verify.verify),
        ("pack", pack.pack),
        ("export", export.export),
        ("versions", rollback.versions),
        ("rollback", rollback.rollback),
    ),
    "Tune again and again": (
        ("init", init.init),
        ("nightly", nightly.app),
        ("farm", farm.app),
        ("prune", prune.prune),
    ),
    "Look inside": (
        ("report", report.report),
        ("records", analysis.app),
        ("model", model.app),
        ("tasks", tasks.tasks),
        ("plan", plan.plan),
        ("ops", ops.ops),
        ("vta", vta.app),
    ),
}
"""Heading of the help -> its commands, by name."""


def _register() -> None:
    for group, commands in _COMMANDS.items():
        for name, command in commands:
            if isinstance(command, typer.Typer):
                for each in command.registered_commands:
                    each.cls = GroupedCommand
                app.add_typer(command, name=name, cls=GroupedCommands, rich_help_panel=group)
            else:
                app.command(name, cls=GroupedCommand, rich_help_panel=group)(command)


_register()


_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room there"),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS), "name a folder that can be written to"
    ),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "allow more open files (ulimit -n)"),
    errno.ENAMETOOLONG: "name a shorter one",
}
"""What the machine refuses -> what to do: none of these is a bug."""


def main() -> None:
    """The console script."""
    warnings.showwarning = lambda message, *_, **__: say(f"retune: warning: {_first_line(message)}")
    code = run_command(sys.argv[1:])
    if code == INTERRUPTED:  # not for threads that wait for a batch: what it measures is not kept
        sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


@cache
def _command() -> Callable[..., Any]:
    """All commands, with their options; made of the functions once in a process."""
    return get_command(app)


def run_command(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code; never raises."""
    try:
        _command()(list(arguments), prog_name="retune")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        return _interrupted(list(arguments)) if code == INTERRUPTED else code
    except KeyboardInterrupt:
        return _interrupted(list(arguments))
    except RetuneError as error:
        say(f"retune: {error}")
        if isinstance(error, ShapesMissing):
            say(f"retune: such as: {shlex.join(['retune', *arguments, *error.options])}")
        return error.exit_code
    except MemoryError as error:
        say(f"retune: out of memory: {_first_line(error)}; try a smaller batch or image")
        return 1
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0)
        if remedy is None:
            return _bug(error)
        path = error.filename2 or error.filename  # a copy names its source first
        where = f"{path}: " if path else ""
        say(f"retune: {where}{error.strerror}; {remedy}, and give the same command again")
        return InputError.exit_code
    except ModuleNotFoundError as error:
        if (missing := missing_extra(error)) is None:
            return _bug(error)
        say(f"retune: {missing}")
        return missing.exit_code
    except Exception as error:  # noqa: BLE001 - the process edge: recorded with its traceback
        return _bug(error)
    return 0


def _bug(error: Exception) -> int:
    say(f"retune: unexpected {type(error).__name__}: {_first_line(error)}")
    say(f"retune: this is a bug; the traceback is in {_write_traceback(error)}")
    return 1


def _interrupted(arguments: list[str]) -> int:
    say("retune: interrupted")
    if arguments[:1] in (["tune"], ["resume"]) or arguments[:2] == ["nightly", "run"]:
        again = shlex.join(["retune", *arguments])
        say(f"retune: everything measured is kept; continue with: {again}")
    return INTERRUPTED


def _write_traceback(error: Exception) -> Path:
    text = "".join(traceback.format_exception(error))
    name = f"traceback-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    for folder in (cache_root() / "errors", Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        except OSError:
            continue
        return folder / name
    say(text)
    return Path("the lines above")


def _first_line(error: Warning | Exception | str) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]


if __name__ == "__main__":
    main()
