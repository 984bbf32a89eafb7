"""Running a page of the documentation: its blocks, in order, as its reader would.

Every fenced block of a page is run, unless a comment on the line before it says otherwise:

| comment | the block |
|---|---|
| none, language `python` | is a program; the blocks of a page share their names |
| none, language `text` | is what was printed before it; numbers are not compared |
| none, no language | is commands, or, where lines begin with `$ `, commands with their output |
| `<!-- file: NAME -->` | is written to that file |
| `<!-- fails -->` | ends with an error, which a block of `text` behind it may show |
| `<!-- not run: REASON -->` | is not run |
| `<!-- not run "BEGINNING": REASON -->` | is run without the lines that begin so |

A page's folder has the small models and arrays of `tests.support.page_files`. Budgets of a page are
cut to two trials, and a run without a budget measures nothing.
"""

import ast
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retune.cli.main import run_command
from retune.core.errors import RetuneError

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(
    r"(?P<marks>(?:^<!-- [^\n]* -->\n)*)^```(?P<language>\w*)\n(?P<text>.*?)^```", re.M | re.S
)
MARK = re.compile(
    r"<!-- (?P<word>not run|file|fails)(?: \"(?P<line>[^\"]+)\")?(?:: (?P<of>.+))? -->"
)
NAMED = re.compile(r"\b(?:tests|examples)/[\w/.]*\w")
BUDGET = re.compile(r" --(?:minutes|trials|trials-per-task) \d+| --effort \w+")
SHELL = re.compile(r"[|><;&*$]")
NUMBER = re.compile(r"\d(?:[\d,.:]*\d)?(?:e[+-]?\d+)?")
HASH = re.compile(r"\b(?=\w*\d)[0-9a-f]{6,}(?=\W|$)|_[0-9a-f]{8}\b")
UNIT = re.compile(r"# ?(?:ns|µs|us|ms|min|s|h)\b")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, with its marks."""

    line: int
    language: str
    text: str
    marks: tuple[re.Match[str], ...]

    def marked(self, word: str) -> str | None:
        """What a mark of this word states for the whole block; None where there is none."""
        found = [m for m in self.marks if m["word"] == word and not m["line"]]
        return (found[0]["of"] or "") if found else None

    @property
    def lines(self) -> list[str]:
        """Its lines that are run; a backslash joins them."""
        left = [m["line"] for m in self.marks if m["line"]]
        lines = self.text.replace("\\\n", " ").splitlines()
        return [each for each in lines if not any(each.startswith(line) for line in left)]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            line=text.count("\n", 0, found.start("language")) + 1,
            language=found["language"],
            text=found["text"],
            marks=tuple(MARK.finditer(found["marks"])),
        )
        for found in FENCE.finditer(text)
    ]


def faults(page: Path) -> Iterator[str]:
    """What is wrong with the marks of a page: every block is run, or a reason says why not."""
    for block in blocks(page):
        where = f"{page.name}:{block.line}"
        for mark in block.marks:
            if mark["word"] != "fails" and not mark["of"]:
                yield f"{where}: a mark without a reason or a name"
            if missing := [p for p in NAMED.findall(mark["of"] or "") if not (ROOT / p).exists()]:
                yield f"{where}: there is no {', '.join(missing)}"
            if mark["line"] and not any(
                line.startswith(mark["line"]) for line in block.text.splitlines()
            ):
                yield f"{where}: no line begins with {mark['line']!r}"
        runs = block.language in ("", "python", "text")
        if not runs and block.marked("not run") is None and block.marked("file") is None:
            yield f"{where}: a block of {block.language} needs a mark: a file, or not run"


def masked(text: str) -> str:
    """The text without numbers, digests, rules and the width of its spaces."""
    text = re.sub(r"[─-]{3,}", "", HASH.sub("#", text))
    return re.sub(r"\s+", " ", UNIT.sub("#", NUMBER.sub("#", text))).strip()


def assert_printed(shown: str, printed: str, where: str) -> None:
    """What a page shows was printed, in this order; a line of three dots leaves something out."""
    rest = masked(printed)
    for part in re.split(r"^\.\.\.$", shown, flags=re.M):
        before, found, after = rest.partition(masked(part))
        assert found or not masked(part), f"{where}: not printed:\n{masked(part)}\nbut:\n{before}"
        rest = after


def briefly(command: str) -> str:
    """A command line of a page with a small budget."""
    if not re.match(r"retune tune ", command):
        return command
    cut, budgets = BUDGET.subn("", command)
    kept = " --trials 2" if budgets and "--trials 0" not in command else " --effort none"
    return f"{cut} --no-prefect{kept}"


class Session:
    """A page that is being run in the current folder: its names, and what was printed so far."""

    def __init__(self, given: str = ""):
        self.names: dict[str, Any] = {}
        self.printed = ""
        self.program(given)

    def block(self, block: Block) -> None:
        """Runs or compares one block."""
        where = f"line {block.line}"
        if block.marked("not run") is not None:
            return
        if (name := block.marked("file")) is not None:
            Path(name).write_text(block.text, encoding="utf-8")
        elif block.language == "text":
            assert_printed(block.text, self.printed, where)
        elif block.language == "python":
            self.program("\n".join(block.lines), fails=block.marked("fails") is not None)
        elif block.text.startswith("$ "):
            self.transcript(block, where)
        else:
            self.commands(block.lines, where, fails=block.marked("fails") is not None)

    def program(self, text: str, *, fails: bool = False) -> None:
        """Runs a program's statements; what its expressions give is printed, as by Python."""
        text = re.sub(r"\b(minutes|trials)=\d+", "trials=2", text)
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(out):
            try:
                for statement in ast.parse(text).body:
                    self.statement(statement)
                ended = ""
            except RetuneError as error:
                ended = str(error)
                print(ended)
        assert bool(ended) == fails, ended or "the program ends without an error"
        self.show(out.getvalue())

    def show(self, text: str) -> None:
        """Keeps what was printed; files are shown by their names in the page's folder."""
        self.printed += text.replace(f"{Path.cwd()}/", "")

    def statement(self, statement: ast.stmt) -> None:
        if not isinstance(statement, ast.Expr):
            module = ast.Module([statement], [])
            exec(compile(module, "page", "exec"), self.names)  # noqa: S102  of the page
        elif (value := eval(ast.unparse(statement.value), self.names)) is not None:  # noqa: S307
            print(repr(value))

    def transcript(self, block: Block, where: str) -> None:
        """Commands behind `$ `, each with what it printed."""
        for part in re.split(r"^\$ ", block.text.replace("\\\n", " "), flags=re.M)[1:]:
            command, _, shown = part.partition("\n")
            before = len(self.printed)
            self.commands([command], where)
            assert_printed(shown, self.printed[before:], where)

    def commands(self, lines: Iterable[str], where: str, *, fails: bool = False) -> None:
        """Runs lines: commands of retune in this process, all others by a shell."""
        others: list[str] = []
        plain = [re.sub(r"\s+#.*|^#.*", "", line) for line in lines]
        wanted = [briefly(re.sub(r"(?:\.venv/bin/)?\bretune ", "retune ", x)) for x in plain if x]
        for number, line in enumerate(wanted):
            last = fails and number == len(wanted) - 1
            if line.startswith("retune ") and not SHELL.search(re.sub(r"\"[^\"]*\"", "", line)):
                self.shell(others, where)
                others = []
                self.command(line, where, fails=last)
            else:
                others.append(line)
        self.shell(others, where, fails=fails and bool(others))

    def command(self, line: str, where: str, *, fails: bool) -> None:
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(out):
            code = run_command(shlex.split(line)[1:])
        self.show(out.getvalue())
        assert bool(code) == fails, f"{where}: {line}\nexit code {code}\n{out.getvalue()}"

    def shell(self, lines: list[str], where: str, *, fails: bool = False) -> None:
        """Runs lines by one shell; what it exports stays for those that follow."""
        if not lines:
            return
        done = subprocess.run(
            ["sh", "-e", "-c", "\n".join([*lines, "env -0 > .environment"])],
            env={**os.environ, **tools()},
            capture_output=True,
            text=True,
            check=False,
        )
        self.show(done.stdout + done.stderr)
        assert bool(done.returncode) == fails, f"{where}: {lines}\n{done.stdout}{done.stderr}"
        if not fails:
            for stated in Path(".environment").read_text(encoding="utf-8").split("\0"):
                name, _, value = stated.partition("=")
                if name.startswith("RETUNE_"):
                    os.environ[name] = value


def tools() -> dict[str, str]:
    """An environment in which `retune` and `python` are those of this process."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT / 'lib'}:{ROOT}",
    }
