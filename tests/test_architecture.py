"""The shape of the code base: sizes of functions, fences, what must not stand in a file."""

import ast
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from retune.core.dtypes import DTYPES

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("lib/retune", "flows", "tasks")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

MAX_FUNCTION_LINES = 50

LONG_FUNCTIONS: dict[str, str] = {
    "flows/tune_network.py::tune_network": "a parameter and its description are a line each",
    "lib/retune/api.py::tune_network": "likewise",
    "lib/retune/cli/commands/quantize.py::quantize": "likewise",
    "lib/retune/cli/commands/tune.py::tune": "likewise",
}
"""`file::function` -> why it may be longer than the budget."""

# Third party -> the only places that import it. A folder ends with a slash.
FENCES: dict[str, tuple[str, ...]] = {
    "prefect": ("flows/", "tasks/", "lib/retune/prefect/"),
    "pyopencl": ("lib/retune/device/",),
    "onnx": tuple(f"lib/retune/{name}/" for name in ("proto", "ops", "graph", "frontend")),
    "onnxruntime": ("lib/retune/bundle/verify/peers.py",),
    "openvino": ("lib/retune/bundle/verify/peers.py",),
    "scipy": ("lib/retune/search/layout/solver.py",),
    "xgboost": ("lib/retune/search/model/cost_model.py",),
    "pyarrow": ("lib/retune/records/",),
    "pandas": ("lib/retune/records/",),
    "ml_dtypes": ("lib/retune/core/dtypes.py",),
    "msgspec": ("lib/retune/core/schema.py",),
    "safetensors": ("lib/retune/core/arrays.py",),
    "distributed": ("lib/retune/device/remote/", "lib/retune/farm/"),
    "dask": ("lib/retune/device/remote/restricted_unpickler.py",),
    "cryptography": ("lib/retune/farm/certs.py", "lib/retune/bundle/trust.py"),
    "jinja2": ("lib/retune/report/",),
    "typer": ("lib/retune/cli/",),
    "rich": ("lib/retune/cli/",),
    "tokenizers": ("lib/retune/language/",),
}

# Packages that must not be loaded by `import retune` or by the command line's help.
HEAVY = (
    "prefect",
    "pyopencl",
    "onnx",
    "onnxruntime",
    "xgboost",
    "pyarrow",
    "pandas",
    "scipy",
    "distributed",
)


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

Nodes = Sequence[ast.AST]
"""All nodes of a file, the module first."""


def nodes_of(text: str) -> Nodes:
    """The nodes of a source text."""
    return [*ast.walk(ast.parse(text))]


def _imports(nodes: Nodes) -> Iterator[tuple[str, int]]:
    """Every imported module of a file, wherever the import stands."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, node.lineno
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno


def _tracked() -> list[Path]:
    try:
        listing = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return [path for path in SOURCES if path.is_file()]
    names = listing.stdout.decode().split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def files() -> dict[Path, Nodes]:
    """The nodes of each source file: to find them takes longer than to look at them."""
    return {path: nodes_of(path.read_text(encoding="utf-8")) for path in SOURCES}


def test_functions_fit_on_a_screen(files: dict[Path, Nodes]):
    long: dict[str, int] = {}
    for path, nodes in files.items():
        for node in nodes:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            where = f"{_name(path)}::{node.name}"
            if lines > MAX_FUNCTION_LINES and where not in LONG_FUNCTIONS:
                long[where] = lines
    assert not long, f"longer than {MAX_FUNCTION_LINES} lines: {long}"


def test_named_exceptions_are_still_needed():
    names = {_name(path) for path in SOURCES}
    stale = [where for where in LONG_FUNCTIONS if where.split("::")[0] not in names]
    assert not stale, f"exceptions for what no longer exists: {stale}"


def test_third_parties_stay_behind_their_doors(files: dict[Path, Nodes]):
    broken: list[str] = []
    for path, nodes in files.items():
        name = _name(path)
        for module, line in _imports(nodes):
            doors = FENCES.get(module.split(".")[0])
            if doors and not any(name == door or name.startswith(door) for door in doors):
                broken.append(f"{name}:{line} imports {module}; only {', '.join(doors)} may")
    assert not broken, "\n".join(sorted(set(broken)))


@pytest.mark.parametrize("module", ["retune", "retune.cli.main"])
def test_importing_is_cheap(module: str):
    """Heavy third parties are imported where they are used, so that `--help` answers at once."""
    import sys

    code = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    path = f"{ROOT / 'lib'}:{ROOT}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_no_unfinished_work():
    marks = re.compile(r"\b(TODO|FIXME|XXX|raise NotImplementedError)\b")
    found = [
        f"{_name(path)}:{number}"
        for path in SOURCES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if marks.search(line)
    ]
    assert not found


SHARED_NAMES: dict[str, str] = {
    "Outputs": "the wire of the examiner has the name of the message, beside a module's outputs",
    "Session": "calls in a row of a module, and a search over tasks",
}
"""Name of a class that two modules may define -> why."""


def test_class_names_are_unique(files: dict[Path, Nodes]):
    found: dict[str, list[str]] = {}
    for path, nodes in files.items():
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(f"{_name(path)}:{node.lineno}")
    shared = {name: places for name, places in found.items() if len(places) > 1}
    assert shared.keys() == SHARED_NAMES.keys(), shared


def test_private_names_stay_in_their_file_and_are_used_there(files: dict[Path, Nodes]):
    wrong: list[str] = []
    for path, nodes in files.items():
        taken = {a.name for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names}
        wrong += [f"{_name(path)} imports {name}" for name in taken if _is_private(name)]
        used = {n.id for n in nodes if isinstance(n, ast.Name)}
        made = {
            n.name
            for n in ast.iter_child_nodes(nodes[0])
            if isinstance(n, DEFINITIONS) and not n.decorator_list
        }
        unused = [name for name in made - used if _is_private(name)]
        wrong += [f"{_name(path)} does not use {name}" for name in unused]
    assert not wrong, wrong


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


UNPICKLING: dict[str, str] = {
    "lib/retune/device/remote/restricted_unpickler.py": "takes pickles apart, to refuse them",
}
"""File -> why it may unpickle."""


def test_nothing_is_unpickled(files: dict[Path, Nodes]):
    """Loading a bundle or a record file executes nothing, and processes talk without pickles."""
    found = {
        f"{_name(path)}:{line} {what}"
        for path, nodes in files.items()
        if _name(path) not in UNPICKLING
        for line, what in unpickles(nodes)
    }
    assert not found


def unpickles(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """Where code may unpickle: by a module for it, or by a call that does it on the way."""
    banned = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
    for module, line in _imports(nodes):
        whole = module.split(".")[0]
        processes = whole == "multiprocessing" and not module.startswith(f"{whole}.connection")
        if whole in banned or processes or module.endswith("ProcessPoolExecutor"):
            yield line, f"imports {module}"
    calls = {"recv", "read_pickle"}
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in calls:
            yield node.lineno, f"calls {node.attr}"
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            allowed = not isinstance(node.value, ast.Constant) or node.value.value is not False
            if allowed:
                yield node.value.lineno, "allows pickles"


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from cloudpickle import loads",
        "reply = self._connection.recv()",
        "receive = connection.recv",
        "import multiprocessing",
        "from multiprocessing import Pipe",
        "from concurrent.futures import ProcessPoolExecutor",
        "np.load(path, allow_pickle=True)",
        "frame = pandas.read_pickle(path)",
    ],
)
def test_unpickling_is_found(code: str):
    assert list(unpickles(nodes_of(code)))


def test_frames_and_arrays_are_not_pickles():
    code = "connection.recv_bytes(9)\nnp.load(path, allow_pickle=False)"
    assert not list(unpickles(nodes_of(code)))


def test_no_registry_addresses():
    """No file says where packages come from: that is the installer's configuration."""
    hosts = (
        "pypi." + "org",
        "pythonhosted." + "org",
        "registry." + "npmjs." + "org",
        "anaconda." + "org",
    )
    broken: list[str] = []
    for path in _tracked():
        if path.stat().st_size > 4 << 20:
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        broken += [f"{_name(path)} names {host}" for host in hosts if host in text]
    assert not broken


def test_every_package_says_what_it_is(files: dict[Path, Nodes]):
    missing = [_name(path) for path, nodes in files.items() if not ast.get_docstring(nodes[0])]
    assert not missing, f"no module docstring: {missing}"


def test_documentation_lists_every_knob_and_package():
    from retune.core.config import KNOBS

    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    missing = [knob.name for knob in KNOBS if f"`{knob.name}`" not in text]
    packages = sorted(path.parent.name for path in (ROOT / "lib/retune").glob("*/__init__.py"))
    missing += [name for name in packages if f"`lib/retune/{name}/`" not in text]
    assert not missing


TYPE_NAMES = {str(dtype) for dtype in DTYPES} | {"x4", "x8"}
PREFIXES = {"float", "int", "uint", *TYPE_NAMES}


def type_comparisons(nodes: Nodes) -> list[int]:
    """Lines that compare something with the name of an element type, or a part of it."""

    def names(node: ast.expr) -> set[object]:
        elements = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
        return {e.value for e in elements if isinstance(e, ast.Constant)}

    found: list[int] = []
    for node in nodes:
        match node:
            case ast.Compare(left=left, comparators=others):
                compared = set[object]().union(*map(names, (left, *others))) & TYPE_NAMES
            case ast.Call(func=ast.Attribute(attr="startswith" | "endswith"), args=args):
                compared = set[object]().union(*map(names, args)) & PREFIXES
            case ast.MatchValue(value=ast.Constant(value=value)):
                compared = {value} & TYPE_NAMES
            case _:
                continue
        if compared:
            found.append(node.lineno)
    return found


@pytest.mark.parametrize(
    "text",
    ['x.dtype == "float32"', 'd in ("int8", "uint8")', 'd.startswith("float")', 'd.endswith("x8")'],
)
def test_comparisons_of_types_with_strings_are_found(text: str):
    assert type_comparisons(nodes_of(text)) == [1]


def test_types_are_not_compared_with_strings(files: dict[Path, Nodes]):
    """What depends on a type is a property of its entry, see `core/dtypes.py`."""
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path, nodes in files.items()
        for line in type_comparisons(nodes)
    ]
    assert not found
