"""Hidden Markov models against hmmlearn and dynamax: `python -m bench.hmm [--json] [--only TEXT ...] [--rounds N]`.

Kernels first, then whole fits (`--only fits`), then memory (`--only memory`).

Every library is given the same log-likelihoods: neither emissions nor M steps are timed. `em` is the expectation of
an EM iteration: posteriors and expected transitions. hmmlearn, which has one thread, is its scaled implementation in
float64, dynamax is jitted, float32, compiled beforehand, on two; Elman runs in the dtype of its peer and on as many
threads. bench.kernels does the measuring.
"""

import importlib
import logging
import subprocess
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch

from bench import kernels
from bench.memory import peak
from bench.rows import Row
from bench.turns import Report, Result, in_turn, parser, result

SIZES = ((1, 100_000, 8), (1, 10_000, 64), (1, 2_000, 256), (1000, 200, 16))
MUST, AIM = 2, 4


def rows() -> list[Row]:
    table = []
    for B, T, K in SIZES:
        for mode in ("score", "posteriors", "em", "viterbi"):
            for peer, dtype, threads in (("hmmlearn", "float64", 1), ("dynamax", "float32", 2)):
                case = {"family": "hmm", "mode": mode, "B": B, "T": T, "K": K, "dtype": dtype}
                name = f"{mode} {B} x {T}, K = {K}, {dtype}{', 1 thread' * (threads == 1)}"
                table.append(Row(name, case, ((peer, case),), MUST, AIM, threads=threads))
    return table


MEMORY = {"family": "hmm", "mode": "em", "B": 1, "T": 100_000, "K": 64, "dtype": "float64"}
MOST = 2.0  # our memory over hmmlearn's, at most


def grown(library: str) -> float:
    """Megabytes that one expectation takes at its peak, its inputs being there already."""
    small = {**MEMORY, "T": 1000}
    module = importlib.import_module(f"bench.with_{library}")
    module.prepare(small, 1)[0]()  # what a library loads when it is first used is no cost of the data
    return peak(module.prepare(MEMORY, 1)[0])


def memory() -> Result:
    """Peak memory of the expectation of an EM iteration, each library in a process of its own."""
    command = "from bench.hmm import grown; print(grown({!r}))"
    how: dict[str, Any] = {"check": True, "capture_output": True, "env": kernels.unmapped()}
    ours, theirs = (
        float(subprocess.run([sys.executable, "-c", command.format(name)], **how).stdout)
        for name in ("elman", "hmmlearn")
    )
    name = "memory of em, 1 x 100000, K = 64, float64: hmmlearn's over ours"
    return result(name, "hmmlearn", [ours], [theirs], 1 / MOST, unit="MB")


Fit = Callable[[ModuleType], list[Any]]
# hmmlearn's default, "log", is about four times slower than its "scaling". Here both name the same.
EM = {"n_iter": 10, "tol": -np.inf, "implementation": "scaling"}


def _large() -> Fit:
    """EM alone: ten steps from the same start, on one long sequence."""
    rng = np.random.default_rng(0)
    X = rng.normal(2.0 * ((np.arange(200_000) // 50) % 3)[:, None], 1.0)

    def fit(library: ModuleType) -> list[Any]:
        model = library.GaussianHMM(3, "diag", init_params="", **EM)
        model.startprob_, model.transmat_ = np.full(3, 1 / 3), np.full((3, 3), 0.1) + 0.7 * np.eye(3)
        model.means_, model.covars_ = np.array([[-0.5], [1.5], [5.0]]), np.ones((3, 1))
        return [model.fit(X)]

    return fit


def _panels(models: int) -> list[Any]:
    rng = np.random.default_rng(0)
    means = 2.0 * ((np.arange(200) // 20) % 2)[:, None]
    return [rng.normal(means, 1.0, (200, 2)) for _ in range(models)]


def _small(models: int = 30) -> Fit:
    """Thirty models of 200 observations each, ten steps from the same start."""
    data = _panels(models)

    def fit(library: ModuleType) -> list[Any]:
        found = []
        for X in data:
            model = library.GaussianHMM(2, "diag", init_params="", **EM)
            model.startprob_, model.transmat_ = np.full(2, 1 / 2), np.full((2, 2), 0.1) + 0.8 * np.eye(2)
            model.means_, model.covars_ = np.array([[0.0, 0.0], [2.0, 2.0]]), np.ones((2, 2))
            found.append(model.fit(X))
        return found

    return fit


def _small_from_means(models: int = 30) -> Fit:
    """The same, each library from centres of its own: k-means, begun once. hmmlearn's `fit` begins it ten times, which
    is not EM and not what ours does, so that its centres are given to it."""
    from sklearn.cluster import KMeans

    data = _panels(models)

    def fit(library: ModuleType) -> list[Any]:
        found = []
        for i, X in enumerate(data):
            theirs = library.__name__ == "hmmlearn.hmm"
            model = library.GaussianHMM(2, "diag", random_state=i, init_params="stc" if theirs else "stmc", **EM)
            if theirs:
                model.means_ = KMeans(2, n_init=1, random_state=i).fit(X).cluster_centers_
            found.append(model.fit(X))
        return found

    return fit


# By name: what is fitted, whether both begin at the same parameters, so that they must end at the same, must and aim.
FITS: dict[str, tuple[Callable[[], Fit], bool, float | None, float | None]] = {
    "fit K = 3, 200000 observations": (_large, True, 3, 6),
    "fit 30 models of 200 observations": (_small, True, 2, 5),
    "fit 30 models of 200 observations, from k-means begun once": (_small_from_means, False, None, None),
}


def same(ours: list[Any], theirs: list[Any]) -> None:
    """Raises unless both fits have arrived at the same parameters."""
    for one, other in zip(ours, theirs, strict=True):
        for name in ("startprob_", "transmat_", "means_"):
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-6, atol=1e-8, err_msg=name)
        np.testing.assert_allclose(one._covars_, other._covars_, rtol=1e-6, err_msg="covariances")


def fits(rounds: int, report: Callable[[Result], None]) -> None:
    """Whole fits on one thread, the libraries in turns."""
    torch.set_num_threads(1)
    logging.getLogger("hmmlearn").setLevel(logging.ERROR)  # that ten steps do not converge is no news
    warnings.simplefilter("ignore")
    libraries = [importlib.import_module(name) for name in ("elman.hmm", "hmmlearn.hmm")]
    for name, (make, one_start, must, aim) in FITS.items():
        fit = make()
        if one_start:
            same(*(fit(library) for library in libraries))
        ours, theirs = in_turn([lambda library=library, fit=fit: fit(library) for library in libraries], rounds)
        report(result(name, "hmmlearn", ours, theirs, must, aim))


def main() -> None:
    flags = parser("hmm", __doc__, 24)
    flags.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="rows whose name contains one of these")
    options = flags.parse_args()
    report = Report(options.json)
    chosen = [r for r in rows() if any(text in f"{r.name} {r.peers[0][0]}" for text in options.only)]
    kernels.run(chosen, options.rounds, report.add)
    if any(text in "fits" for text in options.only):
        fits(min(options.rounds, 7), report.add)
    if any(text in "memory" for text in options.only):
        report.add(memory())
    report.end()


if __name__ == "__main__":
    main()
