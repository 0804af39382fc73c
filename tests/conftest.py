"""One thread per test process: the tests run beside each other, and what depends on threads sets them itself."""

import gc
import os
import shutil

import pytest
import torch
from hypothesis import settings

from elman.cli import flags

torch.set_num_threads(1)

# Training in a test leaves malloc as it is for the tests that count page faults.
flags.keep_memory = lambda: None

# No test is about time: on a busy machine an example may take any.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


def pytest_collection_finish():
    """What is loaded stays: half a million objects that need not be looked through after every test."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    gc.unfreeze()


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


# Playwright drives the chromium that is on the machine; it downloads none.
CHROMIUM = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    """Where chromium and playwright are installed; always in `make test-browser`, which sets ELMAN_BROWSER=1."""
    path = shutil.which("chromium")
    if os.environ.get("ELMAN_BROWSER") != "1":
        pytest.importorskip("playwright.sync_api")
        if path is None:
            pytest.skip("chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        found = play.chromium.launch(executable_path=path or "/usr/bin/chromium", args=CHROMIUM)
        yield found
        found.close()
