"""What all tests share."""

import os
import tempfile

import pytest
from hypothesis import HealthCheck, settings

# Without time limits: machines differ, and are not quiet.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


class FailuresAtOnce:
    """Shows each failure when it happens, not only at the end of all tests."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write_line(f"\nfailed: {report.nodeid} ({report.when})", red=True)
            terminal.write_line(report.longreprtext)


def pytest_configure(config: pytest.Config) -> None:
    """Leave the user's caches alone, and register what parallel runs need.

    Alone, pytest is stopped by hand, or by -x.
    """
    cache = tempfile.TemporaryDirectory()
    config.add_cleanup(cache.cleanup)
    os.environ["XDG_CACHE_HOME"] = cache.name
    if config.getoption("dist", "no") != "no":  # it is "no" in pytest-xdist's workers
        config.pluginmanager.register(FailuresAtOnce(config))
