"""`python run_fake.py FOLDER [held]`: the real flow over fake stages, as its own process.

The round `held` lasts until the process is told to stop.
Prints one line of JSON: the result's trials and its tuned time.
"""

import json
import sys
from pathlib import Path

from tests.flows.fakes import FakeStages


def main() -> None:
    folder = Path(sys.argv[1])
    held = int(sys.argv[2]) if len(sys.argv) > 2 else None
    sys.modules["retune.api"] = FakeStages(held=held).module()
    from retune.stages.manifest import TuneRequest
    from retune_cli.interrupt import ctrl_c_ends_measuring
    from retune_cli.progress import progress_on_stderr
    from retune_prefect.launch import tune_with_prefect

    request = TuneRequest(
        model="zoo:fake",
        out=str(folder / "out"),
        records=str(folder / "records"),
        work=str(folder / "work"),
        trials=9,
    )
    with progress_on_stderr(), ctrl_c_ends_measuring():
        result = tune_with_prefect(request)
    print(json.dumps({"trials": result.trials, "tuned_us": result.latency[1].median_us}))


if __name__ == "__main__":
    main()
