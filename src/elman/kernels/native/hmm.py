"""The filter of a hidden Markov model, what EM expects and the most probable path, on csrc/hmm*.cpp and viterbi.cpp."""

import torch
from torch import Tensor

from elman import _native
from elman.kernels.gaussian import GaussianParameters, GaussianPriors
from elman.kernels.native.op import Context, Struct, calls, contiguous, define, expect, once, output, run


def hmm_filter(
    x: Tensor, start: Tensor, transition: Tensor, state: Tensor, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """x (B, T, K) -> log p(o[t] | o[<t]) (B, T), predictions (B, T, K), the last of them (B, K)."""
    if _wanted(x, start, transition, state):
        log_c, p, last = _Filter.apply(x, start, transition, state, lengths, reset)
    else:
        log_c, p, _, _, last, _ = _forward(x, start, transition, state, lengths, reset, True, False)
    return log_c, p, last


def hmm_log_prob(x: Tensor, start: Tensor, transition: Tensor, state: Tensor, lengths: Tensor, reset: Tensor) -> Tensor:
    """x (B, T, K) -> log p(o[t] | o[<t]) (B, T). Predictions are kept only where a gradient needs them.

    Rows whose states became too improbable for numbers, and may have mattered later, are computed in logarithms.
    """
    if _wanted(x, start, transition, state):
        log_c: Tensor = _LogProb.apply(x, start, transition, state, lengths, reset)
    else:
        log_c = _forward(x, start, transition, state, lengths, reset, False, True)[0]
    return log_c


def hmm_expected(
    x: Tensor, start: Tensor, transition: Tensor, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The sum of `hmm_log_prob`, and its gradients with respect to x, start and transition."""
    total, gx, gstart, ga = _expected(x, start, transition, lengths, reset, True)
    return total, gx, gstart, ga


def hmm_posterior(
    x: Tensor, start: Tensor, transition: Tensor, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """The sum of `hmm_log_prob`, and its gradient with respect to x."""
    total, gx, _, _ = _expected(x, start, transition, lengths, reset, False)
    return total, gx


def best_path(
    x: Tensor, start: Tensor, transition: Tensor, stop: Tensor | None, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """Scores x (B, T, K) -> the states of the best path (B, T), and its score (B,)."""
    path, score = _viterbi(x, start, transition, stop, lengths, reset)
    return path, score


class HmmGaussian:
    """Steps of EM of a hidden Markov model with Gaussian emissions, on csrc/hmm_gaussian.cpp: GaussianInputs,
    GaussianPriors and GaussianOutputs of csrc/kernels.h, checked once for all steps.

    `run` computes, `accept` makes what it proposed the parameters. `weight` (K,) is what each state explains; of dense
    covariances `scatter` (K, D, D) is proposed, and whoever accepts writes the factors.
    """

    def __init__(
        self,
        o: Tensor,
        lengths: Tensor,
        reset: Tensor,
        parameters: GaussianParameters,
        priors: GaussianPriors,
        spherical: bool,
    ) -> None:
        B, T, D = o.shape
        K, dense = len(parameters.mean), parameters.spread.dim() == 3
        G = len(parameters.spread) if dense else 0
        shapes = {"start": (K,), "transition": (K, K), "mean": (K, D)}
        for name, shape in {**shapes, "spread": (G, D, D) if dense else (K, D)}.items():
            expect(name, getattr(parameters, name), shape, o.dtype)
        for name, shape in {**shapes, "variance": (K, D), "least": (D,)}.items():
            expect(name, getattr(priors, name), shape, o.dtype)
        expect("lengths", lengths, (B,), torch.int64)
        expect("reset", reset, (B, T), torch.bool)
        data = {"o": o.contiguous(), "lengths": lengths.contiguous(), "reset": reset.contiguous()}
        self._sizes = {"B": B, "T": T, "K": K, "D": D, "G": G, "spherical": spherical}
        self._priors = {name: _side_by_side(value) for name, value in priors._asdict().items()}
        objective, self.weight = o.new_empty(3), o.new_empty(K)
        self._objective = objective.numpy()
        self.parameters = GaussianParameters(*(p.clone(memory_format=torch.contiguous_format) for p in parameters))
        self._after = GaussianParameters(*(torch.empty_like(p) for p in self.parameters))
        if dense:  # the kernel proposes no factors: those that are there are written over
            self._after = self._after._replace(spread=self.parameters.spread)
        self.scatter = o.new_empty(K, D, D) if dense else self._after.spread
        totals: Struct = {"objective": objective, "weight": self.weight}
        self._data, self._totals, self._dense = data, totals, dense
        self._now, self._then = self._structs(self.parameters, self._after), self._structs(self._after, self.parameters)

    def _structs(self, before: GaussianParameters, after: GaussianParameters) -> tuple[Struct, Struct]:
        spread = {"spread": self.scatter} if self._dense else {}
        return {**self._sizes, **self._data, **before._asdict()}, {**self._totals, **after._asdict(), **spread}

    def run(self) -> tuple[float, float, int]:
        """The log-likelihood; the log prior, without that of dense covariances and their means; and how many of the
        variances that are proposed have collapsed."""
        calls["hmm_gaussian"] += 1
        inputs, outputs = self._now
        run("hmm_gaussian", self.weight.dtype, inputs, self._priors, outputs)
        log_likelihood, log_prior, collapsed = self._objective.tolist()
        return log_likelihood, log_prior, int(collapsed)

    @property
    def proposed(self) -> GaussianParameters:
        """What the parameters would be after the step."""
        return self._after

    def accept(self) -> None:
        self.parameters, self._after = self._after, self.parameters
        self._now, self._then = self._then, self._now


def _side_by_side(value: Tensor | float | bool) -> Tensor | float | bool:
    return value.contiguous() if isinstance(value, Tensor) else value


def _wanted(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


class _Filter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context, x: Tensor, start: Tensor, transition: Tensor, state: Tensor, lengths: Tensor, reset: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        log_c, p, shift, scale, last, lost = _forward(x, start, transition, state, lengths, reset, True, False)
        ctx.save_for_backward(x, start, transition, state, p, shift, scale, lost, lengths, reset)
        ctx.set_materialize_grads(False)
        return log_c, p, last

    @staticmethod
    def backward(ctx: Context, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        glog, gp, glast = gradients
        p, shift = ctx.saved_tensors[4:6]
        glog = torch.zeros_like(shift) if glog is None else glog
        # Both, so that a gradient at one of them is never taken for a gradient of the likelihood alone.
        if gp is not None or glast is not None:
            gp = torch.zeros_like(p) if gp is None else gp
            glast = p.new_zeros((len(p), p.shape[2])) if glast is None else glast
        gs = once(_backward, *ctx.saved_tensors, glog, gp, glast, ctx.needs_input_grad[2])
        return *_present(gs), None, None


class _LogProb(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context, x: Tensor, start: Tensor, transition: Tensor, state: Tensor, lengths: Tensor, reset: Tensor
    ) -> Tensor:
        log_c, p, shift, scale, _, lost = _forward(x, start, transition, state, lengths, reset, True, True)
        ctx.save_for_backward(x, start, transition, state, p, shift, scale, lost, lengths, reset)
        out: Tensor = log_c
        return out

    @staticmethod
    def backward(ctx: Context, glog: Tensor) -> tuple[Tensor | None, ...]:
        gs = once(_backward, *ctx.saved_tensors, glog, None, None, ctx.needs_input_grad[2])
        return *_present(gs), None, None


def _present(gradients: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    """Those of x, start, transition and state, None for that of transition where it was not counted."""
    gx, gstart, ga, gstate = gradients
    return gx, gstart, ga if ga.dim() == 2 else None, gstate


def _inputs(x: Tensor, start: Tensor, transition: Tensor, state: Tensor, lengths: Tensor, reset: Tensor) -> Struct:
    """HmmInputs of csrc/kernels.h, checked."""
    expect("state", state, (len(x), x.shape[2]), x.dtype)
    return _chain(x, start, transition, {"state": state.contiguous()}, lengths, reset)


def _chain(x: Tensor, start: Tensor, transition: Tensor, more: Struct, lengths: Tensor, reset: Tensor) -> Struct:
    """What HmmInputs and ViterbiInputs have in common, checked, and what one of them has besides."""
    B, T, K = x.shape
    expect("transition", transition, (K, K), x.dtype)
    expect("lengths", lengths, (B,), torch.int64)
    expect("reset", reset, (B, T), torch.bool)
    expect("start", start, (K,), x.dtype)
    return {
        "B": B, "T": T, "K": K, "x": x.contiguous(), "start": start.contiguous(),
        "transition": transition.contiguous(), **more, "lengths": lengths.contiguous(), "reset": reset.contiguous(),
    }  # fmt: skip


def _run(
    x: Tensor, start: Tensor, transition: Tensor, state: Tensor, lengths: Tensor, reset: Tensor, keep: bool, logs: bool
) -> tuple[Tensor, ...]:
    """`keep`: the predictions too. `logs`: rows where a lost state may have mattered are done in logarithms."""
    B, T, K = x.shape
    inputs = _inputs(x, start, transition, state, lengths, reset)
    log_c, shift, scale = (output(x, (B, T)) for _ in range(3))  # apart: an op's outputs may not share memory
    p, last, lost = output(x, (B, T if keep else 0, K)), x.new_empty((B, K)), reset.new_empty(B if logs else 0)
    outputs = {"log_c": log_c, "p": p if keep else None, "shift": shift, "scale": scale, "last": last}
    run("hmm_filter", x.dtype, inputs, {**outputs, "lost": lost if logs else None})
    return log_c, p, shift, scale, last, lost


def _run_backward(
    x: Tensor, start: Tensor, transition: Tensor, state: Tensor, p: Tensor, shift: Tensor, scale: Tensor, lost: Tensor,
    lengths: Tensor, reset: Tensor, glog: Tensor, gp: Tensor | None, glast: Tensor | None, counts: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    B, T, K = x.shape
    inputs = _inputs(x, start, transition, state, lengths, reset)
    arriving: Struct = {}
    shapes = {"p": (p, (B, T, K)), "shift": (shift, (B, T)), "scale": (scale, (B, T)), "glog": (glog, (B, T))}
    for name, (given, shape) in {**shapes, "gp": (gp, (B, T, K)), "glast": (glast, (B, K))}.items():
        if given is not None:
            expect(name, given, shape, x.dtype)
        arriving[name] = contiguous(given)
    arriving["lost"] = lost if len(lost) == B else None
    groups = min(B, _native.ROW_GROUPS)
    gx, gstate = output(x, x.shape), x.new_empty((B, K))
    gstart, ga = x.new_empty((groups, K)), x.new_empty((groups, K, K) if counts else (0,))
    gradients = {"gx": gx, "gstart": gstart, "ga": ga if counts else None, "gstate": gstate}
    run("hmm_filter_back", x.dtype, inputs, arriving, gradients)
    return gx, gstart.sum(0), ga.sum(0) if counts else ga, gstate


def _run_expected(
    x: Tensor, start: Tensor, transition: Tensor, lengths: Tensor, reset: Tensor, counts: bool
) -> tuple[Tensor, ...]:
    inputs = _chain(x, start, transition, {}, lengths, reset)
    total, gx, gstart, ga = _fake_expected(x, start, transition, lengths, reset, counts)
    run("hmm_expected", x.dtype, inputs, {"total": total, "gx": gx, "gstart": gstart, "ga": ga if counts else None})
    return total, gx, gstart, ga


def _run_viterbi(
    x: Tensor, start: Tensor, transition: Tensor, stop: Tensor | None, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    if stop is not None:
        expect("stop", stop, (x.shape[2],), x.dtype)
    inputs = _chain(x, start, transition, {"stop": contiguous(stop)}, lengths, reset)
    path, score = output(lengths, x.shape[:2]), x.new_empty(x.shape[:1])
    run("viterbi", x.dtype, inputs, {"path": path, "score": score})
    return path, score


def _fake(
    x: Tensor, start: Tensor, transition: Tensor, state: Tensor, lengths: Tensor, reset: Tensor, keep: bool, logs: bool
) -> tuple[Tensor, ...]:
    B, T, K = x.shape
    times, lost = [x.new_empty((B, T)) for _ in range(3)], reset.new_empty(B if logs else 0)
    return times[0], x.new_empty((B, T if keep else 0, K)), times[1], times[2], x.new_empty((B, K)), lost


def _fake_backward(
    x: Tensor, start: Tensor, transition: Tensor, state: Tensor, p: Tensor, shift: Tensor, scale: Tensor, lost: Tensor,
    lengths: Tensor, reset: Tensor, glog: Tensor, gp: Tensor | None, glast: Tensor | None, counts: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    B, _, K = x.shape
    return x.new_empty(x.shape), x.new_empty((K,)), x.new_empty((K, K) if counts else (0,)), x.new_empty((B, K))


def _fake_expected(
    x: Tensor, start: Tensor, transition: Tensor, lengths: Tensor, reset: Tensor, counts: bool
) -> tuple[Tensor, ...]:
    K = x.shape[2]
    return x.new_empty(()), output(x, x.shape), x.new_empty((K,)), x.new_empty((K, K) if counts else (0,))


def _fake_viterbi(
    x: Tensor, start: Tensor, transition: Tensor, stop: Tensor | None, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    return lengths.new_empty(x.shape[:2]), x.new_empty(x.shape[:1])


_forward = define(
    "hmm_filter(Tensor x, Tensor start, Tensor transition, Tensor state, Tensor lengths, Tensor reset, bool keep,"
    " bool logs) -> (Tensor log_c, Tensor p, Tensor shift, Tensor scale, Tensor last, Tensor lost)",
    _run,
    _fake,
)
_backward = define(
    "hmm_filter_back(Tensor x, Tensor start, Tensor transition, Tensor state, Tensor p, Tensor shift, Tensor scale,"
    " Tensor lost, Tensor lengths, Tensor reset, Tensor glog, Tensor? gp, Tensor? glast, bool counts)"
    " -> (Tensor gx, Tensor gstart, Tensor ga, Tensor gstate)",
    _run_backward,
    _fake_backward,
)
_expected = define(
    "hmm_expected(Tensor x, Tensor start, Tensor transition, Tensor lengths, Tensor reset, bool counts)"
    " -> (Tensor total, Tensor gx, Tensor gstart, Tensor ga)",
    _run_expected,
    _fake_expected,
)
_viterbi = define(
    "viterbi(Tensor x, Tensor start, Tensor transition, Tensor? stop, Tensor lengths, Tensor reset)"
    " -> (Tensor path, Tensor score)",
    _run_viterbi,
    _fake_viterbi,
)
