import torch

from elman import state as states
from elman.core import Core
from elman.model import SequenceModel
from elman.nn.embed import Embedding
from elman.nn.readout import Softmax


class Leaky(Core):
    """A recurrence small enough to see through."""

    def __init__(self, size):
        super().__init__(size, size)
        self.decay = torch.nn.Parameter(torch.full((size,), 0.5))

    def init_state(self, batch_size):
        return self.zeros(batch_size, self.output_size)

    def step(self, x, state):
        state = torch.tanh(self.decay * state + x)
        return state.to(x.dtype), state


def tiny(V=6, H=5, dtype=None):
    torch.manual_seed(0)
    return SequenceModel(Embedding(V, H, dtype=dtype), Leaky(H), Softmax(H, V)).eval()


def test_steps_and_chunks_are_the_scan():
    model = tiny().double()
    x = torch.randint(6, (3, 7))
    lengths = torch.tensor([7, 0, 4])
    whole, last = model.scan(x, lengths=lengths)
    state = model.init_state(3)
    for t in range(7):
        predicted, new = model.step(x[:, t], state)
        state = states.where(t < lengths, new, state)
        torch.testing.assert_close(predicted.logits[t < lengths], whole.logits[:, t][t < lengths])
    torch.testing.assert_close(state, last)


def test_bfloat16_activations_keep_wide_states():
    model = tiny(dtype=torch.bfloat16)
    predicted, state = model.scan(torch.randint(6, (2, 3)))
    assert predicted.logits.dtype == state.dtype == torch.float32
    exact, _ = tiny().scan(torch.randint(6, (2, 3), generator=torch.Generator().manual_seed(0)))
    rough, _ = model.scan(torch.randint(6, (2, 3), generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(rough.logits, exact.logits, atol=0.05, rtol=0)
    assert not torch.equal(rough.logits, exact.logits)
