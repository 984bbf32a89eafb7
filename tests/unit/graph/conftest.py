"""Models of the zoo, written once for the whole run."""

from pathlib import Path

import pytest

from retune.frontend.models import load_model


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def mobilenet(models: Path):
    return load_model("zoo:mobilenet", cache_dir=models)
