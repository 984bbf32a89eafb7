"""Reads mutated files of every kind at length: `python -m tests.fuzz 50000 --first 0`.

Prints what became of them, and each defect with the number of its file.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.corpus import KINDS, make_corpus
from tests.fuzz.reading import read_all

EACH = 1000
"""Files between two lines of the report."""


def main() -> None:
    """Ends with exit code 1 if there were defects."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("files", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kind", choices=sorted(set(KINDS)), help="only files of this kind")
    given = parser.parse_args()
    defects = 0
    with TemporaryDirectory() as name:
        (Path(name) / "corpus").mkdir()
        corpus = make_corpus(Path(name) / "corpus")
        numbers = range(given.first, given.first + given.files * (len(KINDS) if given.kind else 1))
        wanted = [n for n in numbers if given.kind in (None, KINDS[n % len(KINDS)])]
        for start in range(0, len(wanted), EACH):
            part = wanted[start : start + EACH]
            outcome = read_all(corpus, part, Path(name) / "mutated")
            print(f"files {part[0]} to {part[-1]}: {dict(outcome.counts)}", flush=True)
            for number, why in outcome.defects.items():
                print(f"DEFECT {number}: {why}", flush=True)
            defects += len(outcome.defects)
    raise SystemExit(1 if defects else 0)


if __name__ == "__main__":
    main()
