"""Kills a night of two lanes at random moments: `python -m tests.kills 200 --seed 1`.

Prints how far it is, and every defect: records that are lost, trials that were measured twice,
processes that are left, and a night that decided other than one that nobody killed.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.kills.killing import Killed, Undisturbed, kill_nights


def main() -> None:
    """Ends with exit code 1 if there were defects."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("kills", type=int)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    found, said = Killed(), 0
    with TemporaryDirectory() as name:
        undisturbed = Undisturbed(Path(name) / "undisturbed")
        print(f"undisturbed: {undisturbed.seconds:.0f} s", flush=True)
        for found in kill_nights(undisturbed, given.kills, Path(name), given.seed):
            print(f"{found.kills} kills, {found.nights} nights at their end", flush=True)
            for defect in found.defects[said:]:
                print(f"DEFECT {defect}", flush=True)
            said = len(found.defects)
    raise SystemExit(1 if found.defects else 0)


if __name__ == "__main__":
    main()
