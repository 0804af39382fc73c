"""The whole report: verdicts that are known, completeness, units that follow, and what is bad or cannot be had."""

import json
import math

import numpy as np
import pytest
import torch

import elman
from elman import lens
from elman.core import Core
from elman.errors import InputError
from elman.lens.influence import _hopeless
from elman.lens.sample import Sample
from elman.nn.embed import Embedding
from elman.nn.readout import Softmax


class Tanh(Core):
    """h = tanh(W h' + U x), from a state of norm 0.01."""

    def __init__(self, size, gain):
        super().__init__(size, size)
        self.W, self.U = (torch.nn.Parameter(torch.empty(size, size)) for _ in range(2))
        torch.nn.init.orthogonal_(self.W, gain)
        torch.nn.init.orthogonal_(self.U)

    def init_state(self, batch_size):
        return self.W.new_full((batch_size, self.output_size), 0.01 / self.output_size**0.5)

    def step(self, x, h):
        h = torch.tanh(h @ self.W.T + x @ self.U.T)
        return h, h


def by_hand(core, x):
    """The mean over rows of |dL / ds| 1, 2, ... steps before the end, L the sum of the last outputs over sqrt(H)."""
    W, U = core.W.detach().numpy(), core.U.detach().numpy()
    H, found = len(W), []
    for row in x:
        h, hs = np.full(H, 0.01 / H**0.5), []
        for step in row:
            h = np.tanh(W @ h + U @ step)
            hs.append(h)
        g, norms = np.full(H, H**-0.5), []
        for h in hs[::-1]:
            g = W.T @ ((1 - h**2) * g)
            norms.append(np.linalg.norm(g))
        found.append(norms)
    return np.mean(found, 0).tolist()


@pytest.mark.parametrize(("gain", "wanted"), [(0.5, "vanishing"), (1.0, "stable"), (2.0, "exploding")])
def test_the_verdict_tells_gains_apart(gain, wanted):
    torch.manual_seed(0)
    core, x = Tanh(16, gain).double(), 0.01 * torch.randn(8, 50, 16, dtype=torch.float64)
    report = lens.inspect(core, x, anchors=8)
    assert report.kind == wanted
    reach, raw = report.reach[0], by_hand(core, x.numpy())
    assert reach.raw == pytest.approx(raw[: len(reach.raw)], rel=1e-3)
    tau = range(1, 1 + max(i for i, value in enumerate(raw, 1) if value >= 0.01 * raw[0]))
    assert reach.slope == pytest.approx(np.polyfit(tau, np.log(raw[: len(tau)]), 1)[0], rel=1e-3, abs=1e-6)
    if gain <= 1:  # what explodes leaves the straight part of tanh on its way
        assert reach.slope == pytest.approx(math.log(gain), abs=0.02)
    assert (
        len(report.verdict) == 5
        and {"vanishing": "vanishes", "stable": "stable", "exploding": "explodes"}[wanted] in report.verdict[0]
    )


@pytest.mark.parametrize("name", ["elman", "gru", "lru"])
def test_integrated_gradients_are_complete(name):
    torch.manual_seed(0)
    model = elman.SequenceModel(Embedding(7, 4), elman.stack(name, 4, 5), Softmax(5, 7)).double()
    x = torch.randint(0, 7, (1, 40))
    found = lens.influence(model, Sample(x, x.roll(-1)), "integrated", window=12)
    assert found.residual < 1e-3 and found.values.shape == (12, 12) and found.start == 28
    assert found.values.triu(1).abs().max() == 0  # no step knows the inputs after it


def test_a_sum_that_converges_too_slowly_is_given_up():
    assert _hopeless(0.02, 0.04, 64)  # two more halvings leave 0.005
    assert not _hopeless(0.02, 0.5, 64) and not _hopeless(0.02, 0.04, 32) and not _hopeless(0.004, 0.01, 64)


def test_influence_is_the_gradient_of_each_loss():
    torch.manual_seed(0)
    core, x = elman.cell("gru", 2, 3).double(), torch.randn(1, 20, 2, dtype=torch.float64)
    found = lens.influence(core, Sample(x), window=6)
    for t in (14, 17, 19):
        given = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(core(given)[0][0, t].sum() / 3**0.5, given)
        torch.testing.assert_close(found.values[t - 14], gradient[0, 14:].norm(dim=-1), rtol=1e-9, atol=1e-12)
    timed = lens.influence(core, Sample(x), "input", window=6)
    torch.testing.assert_close(timed.values[-1], (gradient[0, 14:] * x[0, 14:]).sum(-1), rtol=1e-9, atol=1e-12)


def test_influence_begins_with_the_state_that_the_sample_begins_with():
    torch.manual_seed(0)
    core, x = elman.cell("gru", 2, 3).double(), torch.randn(1, 9, 2, dtype=torch.float64)
    state = type(core.init_state(1))(2 * torch.randn(1, 3, dtype=torch.float64))
    given = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(core(given, state)[0][0, -1].sum() / 3**0.5, given)
    for window in (4, 9):
        found = lens.influence(core, Sample(x, state=state), window=window)
        torch.testing.assert_close(found.values[-1], gradient[0, -window:].norm(dim=-1), rtol=1e-9, atol=1e-12)


def test_context_of_a_window_is_its_width():
    torch.manual_seed(0)
    found = lens.context(elman.cell("window", 2, 3, k=4), Sample(torch.randn(8, 20, 2), torch.randn(8, 20, 3)))
    assert found.n == [1, 2, 4, 8, 16, 20] and found.effective == 4
    assert found.excess[2:] == pytest.approx([0.0] * 4, abs=1e-6)


def test_a_unit_that_follows_quotes_is_found():
    class Quotes(Core):
        def init_state(self, batch_size):
            return torch.zeros(batch_size, 2)

        def step(self, x, state):
            quoted = torch.where(x[:, :1] > 0, 1 - state[:, :1], state[:, :1])
            state = torch.cat([quoted, torch.sin(x[:, 1:])], 1)
            return state, state

    torch.manual_seed(0)
    text = [['"' if torch.rand(()) < 0.2 else "a" for _ in range(60)] for _ in range(2)]
    marks = torch.tensor([[float(letter == '"') for letter in row] for row in text])
    report = lens.inspect(Quotes(2, 2), torch.stack([marks, torch.randn(2, 60)], -1), names=text)
    best = next(part for part in report.units if part.label == "inside quotes")
    assert best.units[0] == 0 and best.auc[0] == 1.0 and abs(best.auc[1] - 0.5) < 0.2


def test_auc_is_that_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    torch.manual_seed(0)
    values, where = torch.randint(0, 4, (1, 90, 3)).float(), torch.rand(1, 90) < 0.3
    [found] = lens.units("0", values, {"label": where.float()}, torch.ones(1, 90, dtype=torch.bool), best=3)
    for unit, auc in zip(found.units, found.auc, strict=True):
        assert auc == pytest.approx(metrics.roc_auc_score(where[0], values[0, :, unit]))


def test_gates_and_health():
    torch.manual_seed(0)
    core = elman.cell("lstm", 2, 3, forget_bias=10.0)
    report = lens.inspect(core, torch.randn(2, 30, 2))
    gates = {gate.name: gate for gate in report.gates}
    assert set(gates) == {"i", "f", "o"} and gates["f"].high.min() == 1.0 and gates["f"].keeps
    assert report.timescale["0 lstm"].min() > 50  # -1 / ln s(10)
    with torch.no_grad():
        core.U[:], core.W[:], core.b[:] = 0.0, 0.0, 0.0
    assert lens.inspect(core, torch.randn(2, 30, 2)).health[0].dead == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("shape", [(1, 1, 2), (2, 2, 2)])
def test_one_step_and_one_unit(shape):
    report = lens.inspect(elman.cell("gru", 2, 1), torch.randn(shape))
    assert json.dumps(report.to_json(), allow_nan=False)


def test_not_a_number():
    core = elman.cell("gru", 2, 3)
    with torch.no_grad():
        core.b[0] = math.nan
    report = lens.inspect(core, torch.randn(2, 9, 2))
    assert report.health[0].not_finite == 0 and "not finite from step 0" in " ".join(report.verdict)
    assert json.dumps(report.to_json(), allow_nan=False) and report.missing
    assert report.verdict[0] == "The gradient in layer 0 gru is not finite." and "nan times" not in str(report.verdict)


def test_what_reads_the_future_says_what_cannot_be_had():
    model = elman.SequenceModel(Embedding(5, 3), elman.stack("gru", 3, 4, bidirectional=True), Softmax(8, 5))
    x = torch.randint(0, 5, (3, 9))
    report = lens.inspect(model, x, x)
    assert report.context is None and "reads the future" in report.missing["context"]
    assert report.influence[0].values.shape == (9, 9) and not report.causal


def test_a_core_without_a_state():
    report = lens.inspect(elman.Dense(2, 3), torch.randn(2, 9, 2))
    assert report.kind == "stateless" and "no state" in report.verdict[0]


@pytest.mark.parametrize(
    ("model", "x", "match"),
    [
        (torch.nn.Linear(2, 3), torch.randn(1, 5, 2), "takes a Core or a SequenceModel"),
        (elman.cell("gru", 2, 3), torch.randn(0, 5, 2), "at least one input"),
        (elman.cell("gru", 2, 3), torch.randn(1, 0, 2), "at least one input"),
        (
            elman.SequenceModel(Embedding(5, 3), elman.cell("gru", 3, 4), Softmax(4, 5)),
            torch.zeros(1, 3).long(),
            "pass y",
        ),
    ],
)
def test_bad_input(model, x, match):
    with pytest.raises(InputError, match=match):
        lens.inspect(model, x)
