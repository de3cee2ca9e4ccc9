"""Pytest plugin: run a failed test a second time if it is marked `timing`, and print every first failure at the end.

A test is marked `timing` if its result depends on wall-clock time: a rate, a share of busy time, a deadline that a
loaded machine can miss. Such a test may fail once because other processes use the cores. All other tests run once:
a failure that does not come back is a race, and a race is a defect.

The root conftest.py loads this plugin, with and without xdist. The process that runs the test also runs it again;
the report of the second run carries the text of the first failure, so that the xdist controller can print it.
"""

from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from _pytest.terminal import TerminalReporter

#: Directories below tests/ which look for races, so that a second run would hide what they are there to find.
NEVER_TWICE = ("threads", "sim", "property", "net", "faults")

_FIRST_FAILURE = "first failure"


def pytest_configure(config: pytest.Config) -> None:
    """Collect the second runs of this session in one object, which lives as long as `config`."""
    config.pluginmanager.register(_SecondRuns(), "second-runs")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Any:
    """Turn the collection of a file into an error if it marks a test `timing` in a directory of `NEVER_TWICE`."""
    report = yield
    for node in report.result or ():
        if isinstance(node, pytest.Item) and _is_timing(node) and _is_never_twice(node.path, collector.config.rootpath):
            report.outcome = "failed"
            report.longrepr = (
                f"{node.nodeid} is marked `timing`, but tests in {', '.join(NEVER_TWICE)} never run twice: "
                "make the test independent of wall-clock time, or move it to another directory"
            )
            report.result = []
            break
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> object:
    """Run a `timing` test; if its call fails, drop the reports and run it once more, as pytest runs any test.

    A failure in the setup or in the teardown alone (a leaked buffer, for example) does not lead to a second run.
    """
    if not _is_timing(item) or any(name == _FIRST_FAILURE for name, _ in item.user_properties):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    failure = next((report.longreprtext for report in reports if report.when == "call" and report.failed), None)
    if failure is not None:
        item.user_properties.append((_FIRST_FAILURE, failure))
        # Through the hook, not by runtestprotocol: pytest-timeout then gives the second run a limit of its own.
        return item.ihook.pytest_runtest_protocol(item=item, nextitem=nextitem)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


class _SecondRuns:
    """The tests of this session that ran twice, each with its first failure and the outcome of its second run."""

    def __init__(self) -> None:
        self._first_failures: dict[str, str] = {}
        self._failed_again: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a report of a second run. The xdist controller calls it for the reports of all its processes."""
        for name, text in report.user_properties:
            if name == _FIRST_FAILURE:
                self._first_failures[report.nodeid] = str(text)
                if report.failed:
                    self._failed_again.add(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """Print every test that ran twice, with its first failure."""
        if not self._first_failures:
            return
        terminalreporter.section(f"timing: {len(self._first_failures)} run a second time")
        for nodeid, text in self._first_failures.items():
            outcome = "failed" if nodeid in self._failed_again else "passed"
            terminalreporter.write_line(f"{nodeid}: failed, then {outcome}. The first failure:")
            terminalreporter.write_line(text)


def _is_timing(item: pytest.Item) -> bool:
    return item.get_closest_marker("timing") is not None


def _is_never_twice(path: Path, root: Path) -> bool:
    return path.is_relative_to(root) and path.relative_to(root).parts[:2] in {("tests", name) for name in NEVER_TWICE}
