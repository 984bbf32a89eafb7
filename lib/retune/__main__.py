"""`python -m retune`, and the command `retune`."""

import sys

from retune.core.errors import InputError
from retune.core.extras import explained


def main() -> None:
    """The console script: says in one sentence what to install where the command line is not."""
    try:
        with explained():
            from retune.cli.main import main as run
    except InputError as error:
        sys.stderr.write(f"retune: {error}\n")
        sys.exit(error.exit_code)
    run()


if __name__ == "__main__":
    main()
