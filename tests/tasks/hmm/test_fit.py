"""Monitors: what a fit reports, and a rule of one's own that ends it; what gradient steps minimise."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from elman.data import Position
from elman.hmm import ConvergenceMonitor, GaussianHMM
from elman.tasks.hmm.fit import PosteriorLoss, SequenceBatches
from elman.tasks.hmm.gaussian import Gaussian
from elman.tasks.hmm.model import HiddenMarkov, Priors
from elman.tasks.hmm.sequences import Sequences, rows

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


def test_the_prior_counts_once_in_a_pass_however_it_is_cut() -> None:
    torch.manual_seed(0)
    data = Sequences(torch.from_numpy(X), (60, 5, 35, 100), X.shape)
    half = torch.full((2, 2), 0.5, dtype=torch.float64)
    start = torch.tensor([0.9, 0.1], dtype=torch.float64)
    model = HiddenMarkov(Gaussian(torch.zeros(2, 2).double(), torch.ones(2, 2).double(), "diag"), start, half)
    priors = Priors(3.0, 5.0)
    log_prior = float(model.log_prior(priors).detach())
    whole = model.score(data.o, rows(data.lengths)) + log_prior
    assert abs(log_prior) > 1
    for batch_size in (1, 2, 4):
        batches, at, total, terms = SequenceBatches(data, batch_size, 0), Position(), 0.0, 0
        while at.epoch == 0:
            loss, n, _ = PosteriorLoss(priors, len(data.o)).loss(model, batches.batch(at), None)
            total, terms, at = total + loss.item(), terms + n, batches.after(at)
        assert terms == len(X) and total == pytest.approx(-whole)
