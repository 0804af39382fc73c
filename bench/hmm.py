"""Hidden Markov models against hmmlearn and dynamax: `python -m bench.hmm [--json] [--only TEXT ...] [--rounds N]`.

Kernels first, then whole fits (`fits`), then memory.

Every library is given the same log-likelihoods: neither emissions nor M steps are timed. `em` is the expectation of
an EM iteration: posteriors and expected transitions. hmmlearn (one thread) is its scaled implementation in float64,
dynamax is jitted, float32, compiled beforehand; Elman runs in the dtype of its peer. bench.kernels does the measuring.
"""

import argparse
import importlib
import json
import logging
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch

from bench import kernels
from bench.rows import Row

SIZES = ((1, 100_000, 8), (1, 10_000, 64), (1, 2_000, 256), (1000, 200, 16))
MUST, AIM = 2, 4


def rows() -> list[Row]:
    table = []
    for B, T, K in SIZES:
        for mode in ("score", "posteriors", "em", "viterbi"):
            for peer, dtype in (("hmmlearn", "float64"), ("dynamax", "float32")):
                case = {"family": "hmm", "mode": mode, "B": B, "T": T, "K": K, "dtype": dtype}
                table.append(Row(f"{mode} {B} x {T}, K = {K}, {dtype}", case, ((peer, case),), MUST, AIM))
    return table


MEMORY = {"family": "hmm", "mode": "em", "B": 1, "T": 100_000, "K": 64, "dtype": "float64"}
MOST = 2.0  # our memory over hmmlearn's


def grown(library: str) -> float:
    """Megabytes by which the peak of this process grows in one expectation, its inputs being there already."""
    small = {**MEMORY, "T": 1000}
    module = importlib.import_module(f"bench.with_{library}")
    module.prepare(small, 1)[0]()  # what a library loads when it is first used is no cost of the data
    run, _ = module.prepare(MEMORY, 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def memory() -> dict[str, Any]:
    """Peak memory of the expectation of an EM iteration, each library in a process of its own."""
    command = "from bench.hmm import grown; print(grown({!r}))"
    ours, theirs = (
        float(subprocess.run([sys.executable, "-c", command.format(name)], check=True, capture_output=True).stdout)
        for name in ("elman", "hmmlearn")
    )
    name = "memory of em, 1 x 100000, K = 64, float64"
    return {
        "name": name,
        "ours_mb": ours,
        "hmmlearn_mb": theirs,
        "ratio": ours / theirs,
        "reached": ours <= MOST * theirs,
    }


Fit = Callable[[ModuleType], list[Any]]
FIT_ROUNDS = 5
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


# By name: what is fitted, and whether both begin at the same parameters, so that they must end at the same.
FITS = {
    "fit K = 3, 200000 observations": (_large, True),
    "fit 30 models of 200 observations": (_small, True),
    "fit 30 models of 200 observations, from k-means begun once": (_small_from_means, False),
}


def same(ours: list[Any], theirs: list[Any]) -> None:
    """Raises unless both fits have arrived at the same parameters."""
    for one, other in zip(ours, theirs, strict=True):
        for name in ("startprob_", "transmat_", "means_"):
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-6, atol=1e-8, err_msg=name)
        np.testing.assert_allclose(one._covars_, other._covars_, rtol=1e-6, err_msg="covariances")


def fits() -> list[dict[str, Any]]:
    """Whole fits on one thread, the libraries in turns; the ratio is the median of those of the rounds."""
    torch.set_num_threads(1)
    logging.getLogger("hmmlearn").setLevel(logging.ERROR)  # that ten steps do not converge is no news
    warnings.simplefilter("ignore")
    libraries = [importlib.import_module(name) for name in ("elman.hmm", "hmmlearn.hmm")]
    results = []
    for name, (make, one_start) in FITS.items():
        fit, seconds = make(), []
        ours_fitted, theirs_fitted = (fit(library) for library in libraries)  # this warms up too
        if one_start:
            same(ours_fitted, theirs_fitted)
        for _ in range(FIT_ROUNDS):
            took = []
            for library in libraries:
                before = time.perf_counter()
                fit(library)
                took.append(time.perf_counter() - before)
            seconds.append(took)
        ours, theirs = (statistics.median(column) for column in zip(*seconds, strict=True))
        ratio = statistics.median(b / a for a, b in seconds)
        results.append({"name": name, "ours_s": ours, "hmmlearn_s": theirs, "ratio": ratio, "reached": ratio >= 1})
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.hmm", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="rows of JSON alone on standard output")
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="rows whose name contains one of these")
    parser.add_argument("--rounds", type=int, default=24, help="timings of each library in a row")
    options = parser.parse_args()
    chosen = [r for r in rows() if any(text in f"{r.name} {r.peers[0][0]}" for text in options.only)]
    messages = sys.stderr if options.json else sys.stdout
    print(kernels.FORMAT.format(*kernels.HEADER), file=messages)
    results = kernels.run(chosen, options.rounds, lambda r: print(kernels._line(r), file=messages, flush=True))
    if any(text in "fits" for text in options.only):
        for row in fits():
            results.append(row)
            print("{name}: {ours_s:.3f} s, hmmlearn {hmmlearn_s:.3f} s, ratio {ratio:.2f}".format(**row), file=messages)
    if any(text in "memory" for text in options.only):
        results.append(memory())
        print("{name}: {ours_mb:.0f} MB, hmmlearn {hmmlearn_mb:.0f} MB".format(**results[-1]), file=messages)
    if options.json:
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
