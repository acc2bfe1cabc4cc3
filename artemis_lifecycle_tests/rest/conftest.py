from __future__ import annotations

from collections.abc import Iterator

import pytest

from artemis_lifecycle_tests.rest.servers import Server, adapter, seaweed


@pytest.fixture(scope="session")
def seaweed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with seaweed(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture(scope="session")
def adapter_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with adapter(tmp_path_factory.mktemp("adapter")) as server:
        yield server


@pytest.fixture(params=["seaweed", pytest.param("adapter", marks=pytest.mark.nightly)])
def server(request: pytest.FixtureRequest) -> Server:
    """Each REST catalog in turn; Iceberg's adapter at night."""
    found: Server = request.getfixturevalue(f"{request.param}_server")
    return found
