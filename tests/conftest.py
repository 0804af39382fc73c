"""One thread per test process: the tests run beside each other, and what depends on threads sets them itself."""

import gc
import os

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

# No test is about time: on a busy machine an example may take any.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


def pytest_collection_finish():
    """What is loaded stays: half a million objects that need not be looked through after every test."""
    gc.collect()
    gc.freeze()


def _fail_what_is_missing(report):
    """`make test` installs all that the tests import: what is skipped for want of a package there is not tested, and
    nobody would notice."""
    why = str(report.longrepr)
    if os.environ.get("ELMAN_ALL_TESTS") == "1" and report.skipped and "could not import" in why:
        report.outcome, report.longrepr = "failed", f"{why}\nIt is not skipped where all tests run: put it into [dev]."


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport():
    outcome = yield
    _fail_what_is_missing(outcome.get_result())


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report():
    outcome = yield
    _fail_what_is_missing(outcome.get_result())
