"""The OpenCL library that pyopencl brings along, for C programs where no other is installed."""

from ctypes.util import find_library
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """An OpenCL library that is not where the linker looks."""

    library: Path
    home: Path
    """The folder below which the library finds PoCL, once the program says so (PYOPENCL_HOME)."""

    @property
    def link(self) -> str:
        """What to link with; the program finds the library, and that the driver beside it.

        Of the two kinds of search paths, only the old one holds for what libraries load.
        """
        paths = f"-Wl,--disable-new-dtags,-rpath,{self.library.parent}"
        return f'{self.library} {paths} -DPYOPENCL_HOME=\\"{self.home}\\"'


def brought_loader() -> Loader | None:
    """The one of pyopencl; None where it was built against the system's."""
    found = find_spec("pyopencl")
    home = Path(found.origin or "").parent if found else Path()
    libraries = sorted((home / ".libs").glob("libOpenCL*"))
    return Loader(library=libraries[0], home=home) if libraries else None


def needed_loader() -> Loader | None:
    """The same where the machine has no OpenCL library of its own."""
    return None if find_library("OpenCL") else brought_loader()


def brought_link() -> str:
    """What to link with where the one of pyopencl is preferred: `make OPENCL=...`."""
    loader = brought_loader()
    return loader.link if loader else "-lOpenCL"
