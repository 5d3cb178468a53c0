"""What the tests with machines need: a server that runs, named by SIETCH_URL, and
an image that is called debian:bookworm and may be anything with a shell, httpd
and coreutils. Without SIETCH_TEST_MACHINES they are left out."""

from __future__ import annotations

import os
from typing import Iterator

import pytest

import sietch

IMAGE = "debian:bookworm"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("SIETCH_TEST_MACHINES"):
        return
    for item in items:
        if item.get_closest_marker("machines"):
            item.add_marker(pytest.mark.skip(reason="SIETCH_TEST_MACHINES is not set: no server to talk to"))


@pytest.fixture(scope="session")
def server() -> Iterator[sietch.Client]:
    with sietch.Client() as client:
        yield client


@pytest.fixture(scope="session")
def box(server: sietch.Client) -> Iterator[sietch.Sandbox]:
    """A sandbox that the tests share; its files are theirs."""
    with server.run(IMAGE, memory="256M", disk="256M") as box:
        yield box
