"""One Prefect server for all tests of this folder."""

from collections.abc import Iterator

import pytest

from retune.prefect.server import prefect_api


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that is there while the tests of this folder run."""
    from retune.prefect.launch import flush

    with prefect_api(tmp_path_factory.mktemp("prefect")) as url:
        yield url
        flush()
