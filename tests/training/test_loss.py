"""The loss of a batch: which terms it sums, how many there are, and what is carried to the next."""

import pytest
import torch

import elman
from elman.data import Batch
from elman.model import SequenceModel
from elman.nn.embed import Embedding
from elman.nn.readout import BernoulliReadout, Pooled, Softmax
from elman.tasks.text.lm import LanguageModelTask
from elman.training.loss import LossModule, negative_log_likelihood

V, B, T = 5, 3, 6


def batch(seed=0, lengths=(6, 2, 0)):
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randint(0, V, (B, T), generator=generator) for _ in range(2))
    return Batch(x, y, torch.zeros(B, T, dtype=torch.bool), torch.tensor(lengths))


def model(core):
    torch.manual_seed(0)
    return SequenceModel(Embedding(V, 4), core, Softmax(core.output_size, V)).double()


@pytest.fixture
def causal():
    torch.manual_seed(1)
    return model(elman.cell("gru", 4, 3))


def test_each_valid_step_is_one_term(causal):
    given = batch()
    loss, count, state = LossModule(LanguageModelTask(), causal)(given, None)
    total, h = 0.0, None
    for row, n in enumerate(given.lengths.tolist()):
        h = causal.init_state(1)
        for t in range(n):
            predicted, h = causal.step(given.x[row : row + 1, t], h)
            total -= predicted.log_prob(given.y[row : row + 1, t]).item()
    assert count == 8 and loss.item() == pytest.approx(total, rel=1e-12)
    torch.testing.assert_close(elman.state.leaves(state)[0][2:], elman.state.leaves(causal.init_state(1))[0])


def test_the_state_is_carried_from_batch_to_batch(causal):
    whole = batch(lengths=(6, 6, 6))
    halves = [Batch(*(part[:, s] for part in whole[:3]), torch.full((B,), 3)) for s in (slice(0, 3), slice(3, 6))]
    first, n, state = negative_log_likelihood(causal, halves[0], None)
    second, m, _ = negative_log_likelihood(causal, halves[1], state)
    loss, count, _ = negative_log_likelihood(causal, whole, None)
    assert n + m == count and (first + second).item() == pytest.approx(loss.item(), rel=1e-12)


def test_a_core_that_reads_the_future_begins_anew_in_every_batch():
    both = model(elman.Bidirectional(elman.cell("gru", 4, 3), elman.cell("gru", 4, 3)))
    loss, _, state = negative_log_likelihood(both, batch(), None)
    assert state is None
    carried = elman.state.map(torch.ones_like, both.core.init_state(B))
    again, _, _ = negative_log_likelihood(both, batch(), carried)  # it is left alone
    assert again.item() == loss.item()


def test_what_stands_in_the_padding_does_not_matter(causal):
    given, other = batch(), batch(seed=9)
    valid = torch.arange(T) < given.lengths[:, None]
    spoiled = given._replace(x=torch.where(valid, given.x, other.x), y=torch.where(valid, given.y, other.y))
    assert (spoiled.x != given.x).any()
    assert (
        negative_log_likelihood(causal, spoiled, None)[0].item()
        == negative_log_likelihood(causal, given, None)[0].item()
    )


@pytest.mark.parametrize("readout", [Softmax, BernoulliReadout], ids=["softmax", "bits"])
def test_of_one_answer_a_row_each_is_one_term(readout):
    torch.manual_seed(0)
    pooled = SequenceModel(Embedding(V, 4), elman.cell("gru", 4, 3), Pooled(readout(3, T)))
    y = torch.tensor([0, 3, 5]) if readout is Softmax else torch.randint(0, 2, (B, T)).float()
    given = batch(lengths=(6, 2, 1))._replace(y=y)
    loss, count, _ = negative_log_likelihood(pooled, given, None)
    said = pooled.scan(given.x, lengths=given.lengths)[0]
    assert count == B and loss.item() == pytest.approx(-said.log_prob(y).sum().item(), rel=1e-6)
