"""What inputs have to do with a loss: gradients and integrated gradients."""

import pytest
import torch

import elman
from elman import lens
from elman.lens.influence import _hopeless
from elman.lens.sample import Sample
from elman.nn.embed import Embedding
from elman.nn.readout import Softmax


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
