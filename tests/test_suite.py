"""The suite itself: what is skipped for want of a package fails where all tests run."""

from types import SimpleNamespace

import pytest


@pytest.mark.parametrize(
    ("everything", "why", "outcome"),
    [
        ("1", "Skipped: could not import 'mambapy.mamba': No module named 'mambapy'", "failed"),
        ("", "Skipped: could not import 'mambapy.mamba': No module named 'mambapy'", "skipped"),
        ("1", "Skipped: strace is not installed", "skipped"),
    ],
)
def test_a_package_that_is_missing_is_a_failure(request, monkeypatch, everything, why, outcome):
    monkeypatch.setenv("ELMAN_ALL_TESTS", everything)
    (conftest,) = (p for p in request.config.pluginmanager.get_plugins() if hasattr(p, "_fail_what_is_missing"))
    report = SimpleNamespace(skipped=True, longrepr=why, outcome="skipped")
    conftest._fail_what_is_missing(report)
    assert report.outcome == outcome
