"""A softmax over a product: what it says, and that it makes no logits for it."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from elman.errors import InputError
from elman.nn.crf import TagSoftmax
from elman.nn.distributions import Categorical
from elman.nn.readout import Softmax

B, T, H, V = 3, 4, 5, 400
LENGTHS = torch.tensor([4, 0, 2])


class Largest(TorchDispatchMode):
    """How many numbers the largest tensor has that is made in here."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        found = func(*args, **(kwargs or {}))
        for part in found if isinstance(found, tuple | list) else (found,):
            self.numbers = max(self.numbers, part.numel() if isinstance(part, Tensor) else 0)
        return found


def predicted(rows: int = B) -> tuple[Softmax, Categorical, Tensor]:
    torch.manual_seed(0)
    readout, y = Softmax(H, V), torch.randn(rows, T, H, requires_grad=True)
    return readout, readout(y), torch.randint(V, (rows, T))


def test_training_makes_no_logits() -> None:
    readout, _, _ = predicted()
    y, symbols = torch.randn(64, 1, H, requires_grad=True), torch.zeros(64, 1, dtype=torch.int64)
    for ask in (
        lambda said: said.log_prob(symbols).sum(),
        lambda said: said.log_prob_sum(symbols, LENGTHS[:1] * 0 + 1)[0],
    ):
        with Largest() as made:
            ask(readout(y)).backward()
        assert readout.linear.weight.grad is not None and made.numbers == V * H


def test_a_sum_counts_what_is_within_the_lengths() -> None:
    _, said, symbols = predicted()
    terms = -F.cross_entropy(said.logits.reshape(-1, V), symbols.reshape(-1), reduction="none").reshape(B, T)
    torch.testing.assert_close(said.log_prob(symbols), terms)
    torch.testing.assert_close(said.log_prob_sum(symbols), (terms.sum(), B * T))
    wanted = terms[0].sum() + terms[2, :2].sum()
    for one in (said, Categorical(said.logits)):
        torch.testing.assert_close(one.log_prob_sum(symbols, LENGTHS), (wanted, int(LENGTHS.sum())))


def test_tags_that_are_none_count_nothing() -> None:
    torch.manual_seed(0)
    said = TagSoftmax(H, V)(torch.randn(B, T, H), LENGTHS)
    tags = torch.randint(V, (B, T))
    tags[0, 1] = -1
    wanted = said.log_probs().gather(-1, tags.clamp(min=0)[..., None])[..., 0]
    torch.testing.assert_close(said.log_prob_sum(tags)[0], wanted[0, [0, 2, 3]].sum() + wanted[2, :2].sum())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_had_no_graph_gets_none_later(mode: type) -> None:
    readout, y = Softmax(H, V), torch.randn(B, T, H)
    with mode():
        said = readout(y * 1)
    assert not said.logits.requires_grad and not said.log_prob(torch.zeros(B, T, dtype=torch.int64)).requires_grad


def test_weights_that_have_changed_are_refused() -> None:
    readout, said, symbols = predicted()
    _, before, _ = predicted()
    kept = before.logits
    with torch.no_grad():
        readout.linear.bias.add_(1)
    for ask in (lambda: said.logits, lambda: said.log_prob(symbols), lambda: said.log_prob_sum(symbols)):
        with pytest.raises(InputError, match="have changed since it was made"):
            ask()
    assert before.logits is kept
