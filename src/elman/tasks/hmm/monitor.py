"""How a fit is going: hmmlearn's interface, so that a monitor written for it ends a fit here too."""

from __future__ import annotations

import math
from typing import ClassVar

from elman import progress


class ConvergenceMonitor:
    """Is told what a fit climbs, before each of its steps. To end fits by a rule of your own, derive from it, override
    `converged`, and set an instance as a model's `monitor_`.

    >>> monitor = ConvergenceMonitor(tol=0.01, n_iter=10, verbose=False)
    >>> for value in (-5.0, -4.0, -3.995):
    ...     monitor.report(value)
    >>> monitor.iter, monitor.history, monitor.converged
    (3, [-5.0, -4.0, -3.995], True)
    """

    _template: ClassVar[str] = "step {iter}  log-likelihood {log_prob:.6f}  gain {delta:.6g}"

    def __init__(self, tol: float, n_iter: int, verbose: bool) -> None:
        self.tol, self.n_iter, self.verbose = tol, n_iter, verbose
        self._reset()

    def _reset(self) -> None:
        self.history: list[float] = []
        self.iter = 0

    def report(self, log_prob: float) -> None:
        """Take note of the objective before a step, and say it on standard error if `verbose`."""
        if self.verbose:
            delta = log_prob - self.history[-1] if self.history else math.nan
            progress.say(self._template.format(iter=self.iter + 1, log_prob=log_prob, delta=delta))
        self.history.append(log_prob)
        self.iter += 1

    @property
    def converged(self) -> bool:
        """Whether the fit should end: no step is left, or the last one gained less than `tol`."""
        settled = len(self.history) > 1 and self.history[-1] - self.history[-2] < self.tol
        return self.iter == self.n_iter or settled
