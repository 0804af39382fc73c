import pytest
import torch
from torch import Tensor, nn

from elman import state as states
from elman.cells import cell
from elman.compose import Bidirectional, Pool, Stack
from elman.errors import InputError
from elman.model import SequenceModel
from elman.nn.embed import Embedding
from elman.nn.readout import (
    AdaptiveSoftmax,
    BernoulliReadout,
    BothEnds,
    GaussianReadout,
    NegativeBinomialReadout,
    PoissonReadout,
    Pooled,
    Softmax,
    StudentTReadout,
)
from elman.stream import Stream


def test_adaptive_softmax_is_torchs():
    torch.manual_seed(0)
    ours = AdaptiveSoftmax(16, 20, [5, 11]).double()
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(16, 20, [5, 11], div_value=4.0).double()
    theirs.head.weight.data = ours.head.weight.data
    for mine, tail in zip(ours.tails, theirs.tail, strict=True):
        for a, b in zip(mine, tail, strict=True):
            assert b.weight.shape == a.weight.shape
            b.weight.data = a.weight.data
    h, y = torch.randn(40, 16).double(), torch.arange(40) % 20
    torch.testing.assert_close(ours(h).log_prob(y), theirs(h, y).output)
    torch.testing.assert_close(ours(h).log_probs(), theirs.log_prob(h))
    shaped = ours(h.reshape(5, 8, 16)).log_prob(y.reshape(5, 8))
    torch.testing.assert_close(shaped.flatten(), ours(h).log_prob(y))


def test_adaptive_softmax_gradients():
    torch.manual_seed(0)
    ours = AdaptiveSoftmax(8, 9, [3, 6]).double()
    h = torch.randn(9, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda h: ours(h).log_prob(torch.arange(9)), (h,))


def test_tied_weights_are_one_parameter():
    embed = Embedding(7, 4)
    readout = Softmax(4, 7, weight=embed.weight)
    assert readout.linear.weight is embed.weight
    with pytest.raises(InputError, match="tied only if"):
        Softmax(5, 7, weight=embed.weight)


def test_dropout_is_for_training_only():
    readout = Softmax(64, 3, dropout=0.5)
    h = torch.ones(1, 64)
    assert not torch.equal(readout(h).logits, readout(h).logits)
    readout.eval()
    assert torch.equal(readout(h).logits, readout(h).logits)


def test_gaussian_widths_are_positive():
    read = GaussianReadout(3, 2)(torch.full((1, 3), -1e4))
    assert (read.std > 0).all() and read.mean.shape == (1, 2)


@pytest.mark.parametrize("cutoffs", [[], [0, 3], [4, 3], [3, 9]])
def test_bad_cutoffs(cutoffs):
    with pytest.raises(InputError, match="cutoffs"):
        AdaptiveSoftmax(8, 9, cutoffs)


def negative_log_likelihood(model, x, y, reset, lengths, state=None):
    """What a training step sums: (B, T) terms by step, as far as lengths go, or (B,) terms by row; and their number."""
    predicted, state = model.scan(x, state, lengths=lengths, reset=reset)
    log_prob = predicted.log_prob(y)
    if log_prob.dim() == 1:
        return -log_prob.sum(), len(log_prob), state
    valid = torch.arange(log_prob.shape[1]) < lengths[:, None]
    return -torch.where(valid, log_prob, 0.0).sum(), int(lengths.sum()), state


SYMBOLS, COUNTS = torch.arange(12).reshape(3, 4) % 7, (torch.arange(24.0) % 5).reshape(3, 4, 2)
# A read-out of 5 features, targets (3, 4, ...), and Torch's distribution of the values that its product gives.
READOUTS = {
    "softmax": (lambda: Softmax(5, 7), SYMBOLS, lambda v: torch.distributions.Categorical(logits=v)),
    "bernoulli": (
        lambda: BernoulliReadout(5, 2), COUNTS % 2,
        lambda v: torch.distributions.Independent(torch.distributions.Bernoulli(logits=v), 1),
    ),
    "gaussian": (
        lambda: GaussianReadout(5, 2), COUNTS - 2,
        lambda v: torch.distributions.Independent(
            torch.distributions.Normal(v[..., :2], nn.functional.softplus(v[..., 2:])), 1
        ),
    ),
    "student_t": (
        lambda: StudentTReadout(5, 2), COUNTS - 2,
        lambda v: torch.distributions.Independent(
            torch.distributions.StudentT(
                2 + nn.functional.softplus(v[..., 4:]), v[..., :2], nn.functional.softplus(v[..., 2:4])
            ), 1
        ),
    ),
    "poisson": (
        lambda: PoissonReadout(5, 2), COUNTS,
        lambda v: torch.distributions.Independent(torch.distributions.Poisson(nn.functional.softplus(v)), 1),
    ),
    "negative_binomial": (
        lambda: NegativeBinomialReadout(5, 2), COUNTS,
        lambda v: torch.distributions.Independent(negative_binomial(*v.chunk(2, -1)), 1),
    ),
}  # fmt: skip


def negative_binomial(a, b):
    mean, r = nn.functional.softplus(a), 1 / (nn.functional.softplus(b) + 1e-6)
    return torch.distributions.NegativeBinomial(r, logits=(mean / r).log())


each_readout = pytest.mark.parametrize(("build", "y", "torchs"), READOUTS.values(), ids=READOUTS)
X, LENGTHS = torch.arange(12).reshape(3, 4) % 6, torch.tensor([4, 0, 2])
RESET = torch.tensor([[True, False, True, False], [True] * 4, [True, False, False, True]])


@each_readout
def test_every_distribution_has_one_term_per_step(build, y, torchs):
    """Torch's log-probabilities, row by row, of the core's own outputs; and a gradient for every parameter."""
    torch.manual_seed(0)
    model = SequenceModel(Embedding(6, 3), cell("gru", 3, 5), build()).double()
    y = y.double() if y.is_floating_point() else y
    loss, count, _ = negative_log_likelihood(model, X, y, RESET, LENGTHS)
    assert count == 6
    wanted = torch.zeros((), dtype=torch.float64)
    for row, length in ((0, 4), (2, 2)):  # row 1 has no step
        h, _ = model.core.scan(model.embed(X[row : row + 1, :length]), reset=RESET[row : row + 1, :length])
        values = nn.functional.linear(h, model.readout.linear.weight, model.readout.linear.bias)
        wanted = wanted - torchs(values).log_prob(y[row : row + 1, :length]).sum()
    torch.testing.assert_close(loss, wanted)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    assert all(g.isfinite().all() and g.abs().sum() > 0 for g in gradients)


@each_readout
def test_every_distribution_has_one_term_per_row_where_it_is_pooled(build, y, torchs):
    torch.manual_seed(0)
    core = Stack(cell("gru", 3, 5), Pool("mean", 5))
    model = SequenceModel(Embedding(6, 3), core, Pooled(build())).double()
    y = y[:, 0].double() if y.is_floating_point() else y[:, 0]
    loss, count, _ = negative_log_likelihood(model, X, y, RESET, LENGTHS)
    assert count == 3
    h, _ = model.core.scan(model.embed(X), lengths=LENGTHS, reset=RESET)
    last = torch.stack([h[0, 3], torch.zeros(5).double(), h[2, 1]])
    linear = model.readout.readout.linear
    torch.testing.assert_close(loss, -torchs(nn.functional.linear(last, linear.weight, linear.bias)).log_prob(y).sum())


@pytest.mark.parametrize("shape", [(1, 4, 1), (1, 1, 1), (4, 4, 4)])
def test_no_shape_multiplies_the_terms(shape):
    """Where B, T and D are equal or 1, sums over the wrong axes would still fit together."""
    B, T, D = shape
    model = SequenceModel(nn.Identity(), cell("gru", 3, 5), GaussianReadout(5, D)).double()
    x, y = torch.randn(B, T, 3).double(), torch.randn(B, T, D).double()
    loss, count, _ = negative_log_likelihood(model, x, y, torch.zeros(B, T).bool(), torch.full((B,), T))
    predicted, _ = model.scan(x)
    assert count == B * T
    torch.testing.assert_close(loss, -torch.distributions.Normal(predicted.mean, predicted.std).log_prob(y).sum())


class Spy(nn.Module):
    """A read-out that keeps what it was called with."""

    def forward(self, y: Tensor, lengths: Tensor | None = None) -> Tensor:
        self.y, self.lengths = y, lengths
        return y


def test_read_outs_are_given_lengths():
    model = SequenceModel(Embedding(6, 3), cell("gru", 3, 5), Spy())
    model.scan(X)
    assert model.readout.lengths.tolist() == [4, 4, 4]
    model.scan(X, lengths=LENGTHS)
    assert model.readout.lengths.tolist() == [4, 0, 2] and model.readout.y.shape == (3, 4, 5)
    model.scan(X[:, :0])
    assert model.readout.lengths.tolist() == [0, 0, 0]
    model.step(X[:, 0], model.init_state(3))
    assert model.readout.lengths is None and model.readout.y.shape == (3, 5)


@pytest.mark.parametrize("readout", [Softmax(5, 7), AdaptiveSoftmax(5, 7, [3])], ids=["softmax", "adaptive"])
@pytest.mark.parametrize("kind", ["last", "mean"])
def test_a_pooled_model_answers_after_each_input(readout, kind):
    """A step's answer, a stream's and that of a scan of everything so far are one."""
    torch.manual_seed(0)
    model = SequenceModel(Embedding(6, 3), Stack(cell("gru", 3, 5), Pool(kind, 5)), Pooled(readout)).eval()
    stream, state = Stream(model, 3), model.init_state(3)
    with torch.no_grad():
        for t in range(4):
            stepped, state = model.step(X[:, t], state)
            whole = model.scan(X[:, : t + 1])[0].log_prob(SYMBOLS[:, t])
            assert whole.shape == (3,)
            torch.testing.assert_close(stepped.log_prob(SYMBOLS[:, t]), whole)
            torch.testing.assert_close(stream.step(X[:, t]).log_prob(SYMBOLS[:, t]), whole)


def test_a_row_without_an_input_gives_the_start_of_the_pool():
    model = SequenceModel(Embedding(6, 3), Stack(cell("gru", 3, 5), Pool("max", 5)), Pooled(Softmax(5, 7)))
    for x, lengths in ((X, LENGTHS), (X[:, :0], None)):
        logits = model.scan(x, lengths=lengths)[0].logits[1]
        assert torch.equal(logits, model.readout.readout(torch.zeros(1, 5)).logits[0])


def test_both_ends_of_a_bidirectional_core_are_its_last_states():
    torch.manual_seed(0)
    core = Bidirectional(cell("gru", 3, 5), cell("gru", 3, 2))
    model = SequenceModel(Embedding(6, 3), core, BothEnds(Softmax(7, 4), 5))
    predicted, state = model.scan(X, lengths=LENGTHS)
    both = torch.cat(states.leaves(state), -1)
    torch.testing.assert_close(predicted.logits, model.readout.readout(both).logits)
    with pytest.raises(InputError, match="no step"):
        model.readout(torch.zeros(2, 7))


def test_a_model_that_reads_the_future_says_so():
    core = Bidirectional(cell("gru", 3, 5), cell("gru", 3, 5))
    model = SequenceModel(Embedding(6, 3), core, Softmax(10, 7))
    with pytest.raises(InputError, match=r"reads the future .* no step"):
        model.step(X[:, 0], core.init_state(3))
    with pytest.raises(InputError, match=r"reads the future .* no initial state"):
        model.init_state(3)
    assert model.scan(X)[0].logits.shape == (3, 4, 7)
