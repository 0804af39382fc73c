"""Monitors: what a fit reports, and a rule of one's own that ends it."""

import warnings
from typing import Any

import numpy as np
import pytest

from elman.hmm import ConvergenceMonitor, GaussianHMM

X = np.random.default_rng(0).normal(4.0 * ((np.arange(200) // 20) % 2)[:, None], 1.0, (200, 2))


def fitted(**options: Any) -> GaussianHMM:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return GaussianHMM(2, random_state=0, **options).fit(X)


def test_a_fit_reports_what_it_climbs_before_each_step() -> None:
    model = fitted(n_iter=3, tol=0.0)
    assert model.monitor_.iter == 3 == len(model.monitor_.history)
    assert model.monitor_.converged and not model.converged_  # hmmlearn's monitor also means that no step is left
    assert all(b > a for a, b in zip(model.monitor_.history, model.monitor_.history[1:], strict=False))
    assert fitted(n_iter=50, tol=0.1).monitor_.converged


def test_a_monitor_is_there_before_a_fit_and_is_made_anew_for_each() -> None:
    model = GaussianHMM(2, tol=0.5, n_iter=7)
    assert (model.monitor_.tol, model.monitor_.n_iter, model.monitor_.history) == (0.5, 7, [])
    model = fitted(n_iter=1)
    assert model.set_params(n_iter=4, tol=0.0, init_params="").fit(X).monitor_.iter == 4


@pytest.mark.parametrize("method", ["em", "adam"])
def test_a_monitor_of_ones_own_ends_a_fit(method: str) -> None:
    class Second(ConvergenceMonitor):
        @property
        def converged(self) -> bool:
            return self.iter == 2

    model = GaussianHMM(2, random_state=0, method=method, tol=0.0, n_iter=50)
    model.monitor_ = monitor = Second(0.0, 50, False)
    assert model.fit(X).converged_ and model.monitor_ is monitor
    assert monitor.iter == 2 and len(model.history_) == (3 if method == "em" else 2)  # EM makes the step it was told of
    model.fit(X)
    assert monitor.iter == 2


def test_a_fit_that_is_asked_to_says_each_step_and_start(capsys: pytest.CaptureFixture[str]) -> None:
    fitted(n_iter=2, tol=0.0, n_init=2, verbose=True)
    said = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[0] for line in said] == [
        "start 1 of 2", "step 1", "step 2", "start 2 of 2", "step 1", "step 2",
    ]  # fmt: skip
