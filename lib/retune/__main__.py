"""`python -m retune`, and the command `retune`."""

import gc
import sys

from retune.core.errors import InputError
from retune.core.extras import explained

SEARCHED_AFTER = 10_000
"""New objects between two searches for garbage. Programs are trees of many small objects that hold
no cycles: by Python's own number, 700, searches take a twentieth of the time of compilation."""


def main() -> None:
    """The console script: says in one sentence what to install where the command line is not."""
    gc.set_threshold(SEARCHED_AFTER)
    try:
        with explained():
            from retune.cli.main import main as run
    except InputError as error:
        sys.stderr.write(f"retune: {error}\n")
        sys.exit(error.exit_code)
    run()


if __name__ == "__main__":
    main()
