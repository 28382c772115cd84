"""What the suites of others need of pytest."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Make known the marks that kombu's suite uses."""
    config.addinivalue_line("markers", "env(name): kombu's, the service that a test is for")
    config.addinivalue_line("markers", "flaky(reruns, reruns_delay): kombu's, of pytest-rerunfailures")
