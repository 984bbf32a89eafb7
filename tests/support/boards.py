"""Simulated boards for tests: files of them, and programs whose times are asked for."""

from pathlib import Path

from retune.codegen.source import KernelLaunch, KernelText, Run
from retune.device.simulated.board import SimulatedBoard, read_board


def written(folder: Path, text: str = "", name: str = "board") -> Path:
    """The file of a board of that name; `text` is what else it says."""
    path = folder / f"{name}.toml"
    path.write_text(f'name = "{name}"\n{text}', encoding="utf-8")
    return path


def board(folder: Path, text: str = "", name: str = "board") -> SimulatedBoard:
    return read_board(written(folder, text, name))


def fault(kind: str, **fields: object) -> str:
    """One table of a script."""
    lines = "".join(f"{key} = {value!r}\n" for key, value in fields.items())
    return f'[[fault]]\nkind = "{kind}"\n{lines}'


def run(number: int = 0, *, groups: int = 4, flops: int = 100_000, bytes: int = 4000) -> Run:
    """A kernel among many, and its launch."""
    kernel = KernelText(name=f"conv2d_{number}", text=f"float8 x = {number};")
    launch = KernelLaunch(
        kernel=kernel.name,
        args=(),
        writes=(),
        global_size=(groups, 1, 1),
        local_size=(1, 1, 1),
        flops=flops,
        bytes=bytes,
    )
    return kernel, launch
