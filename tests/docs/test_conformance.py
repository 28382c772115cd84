"""The page of the suites that others wrote is read by their run: its tables are of the form that the run needs."""

from __future__ import annotations

import re

import pytest

from tests.conformance.listed import LEFT_OUT, SKIPPED, entry_of, listed


@pytest.mark.parametrize("heading", [LEFT_OUT, SKIPPED])
def test_every_exception_names_a_test_and_a_reason(heading: str) -> None:
    """What is not run is named by its file, class and function, and never without a reason."""
    entries = listed(heading)
    assert entries
    for entry, reason in entries.items():
        assert re.fullmatch(r"test_\w+\.py(::\w+)*", entry)
        assert reason


@pytest.mark.parametrize(
    ("nodeid", "entry"),
    [
        ("t/integration/test_a.py::test_c::test_f[x/y::z]", "test_a.py::test_c::test_f"),
        ("t/integration/test_a.py::test_c::test_f_too", None),
        ("t/integration/test_b.py::test_f", "test_b.py"),
        ("t/integration/test_b.py", "test_b.py"),
    ],
)
def test_an_entry_stands_for_its_test_and_its_parameters(nodeid: str, entry: str | None) -> None:
    """A function's entry covers its parameters and no other function, a file's covers the file."""
    assert entry_of(nodeid, ["test_a.py::test_c::test_f", "test_b.py"]) == entry
