"""A pytest plugin for Celery's suite: what docs/conformance.md lists is left out or may be skipped, and nothing else.

The page is the one place where exceptions stand. A test that is skipped or fails as expected without being listed fails
the run, and so does an entry of the list that names no test any more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"

#: The headings of the page's two tables.
LEFT_OUT = "Left out of Celery's suite"
SKIPPED = "Skipped by Celery's suite"


def listed(heading: str) -> dict[str, str]:
    """Return the reasons under a heading by what they are for: ``test_file.py`` or ``test_file.py::test``."""
    found = re.search(rf"^#+ {re.escape(heading)}$\n(.*?)(?=^#|\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    if not found:
        raise ValueError(f"{PAGE} has no section {heading!r}; the run reads its exceptions there")
    rows = (line.strip("| ").split(" | ", 1) for line in found[1].splitlines() if line.startswith("| `"))
    return {test.strip("` "): reason.strip() for test, reason in rows}


def entry_of(nodeid: str, entries: Iterable[str]) -> str | None:
    """Return the entry that a test belongs to: its own, its function's, its class's or its file's."""
    name = nodeid.removeprefix("t/integration/")
    for entry in entries:
        if name == entry or name.startswith((f"{entry}::", f"{entry}[")):
            return entry
    return None


class Listed:
    """Holds the lists against one session of pytest."""

    def __init__(self) -> None:
        self.left_out = listed(LEFT_OUT)
        self.may_skip = listed(SKIPPED)
        self.faults: list[str] = []

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect what is left out; remember entries that name nothing."""
        kept, gone, named = [], [], set()
        for item in items:
            entry = entry_of(item.nodeid, self.left_out)
            named.update({entry, entry_of(item.nodeid, self.may_skip)})
            (kept if entry is None else gone).append(item)
        files = {item.path.name for item in items}
        for entry in (*self.left_out, *self.may_skip):
            if entry not in named and entry.partition("::")[0] in files:
                self.faults.append(f"{entry} is listed in {PAGE.name}, and there is no such test")
        if gone:
            config.hook.pytest_deselected(items=gone)
            items[:] = kept

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """See files that skip themselves."""
        self._see(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """See tests that were skipped or failed as expected."""
        self._see(report)

    def _see(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if report.skipped and entry_of(report.nodeid, self.may_skip) is None:
            skipped = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
            reason = getattr(report, "wasxfail", "") or skipped
            self.faults.append(f"{report.nodeid} was not run ({reason}), and {PAGE.name} does not list it")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the run for what is not listed rightly."""
        if self.faults:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name the faults."""
        for fault in dict.fromkeys(self.faults):
            terminalreporter.write_line(f"LIST {fault}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    """Hold this session against the lists."""
    config.pluginmanager.register(Listed())
