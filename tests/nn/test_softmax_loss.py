"""Against Torch's cross-entropy, values and gradients, in one block and in many."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elman.nn import softmax_loss
from elman.nn.readout import Softmax
from elman.nn.softmax_loss import Product, log_prob

V, H = 11, 5


def problem(dtype: torch.dtype = torch.float64) -> tuple[Product, Tensor, Tensor]:
    torch.manual_seed(0)
    h, weight, bias = torch.randn(3, 4, H), torch.randn(V, H), torch.randn(V)
    product = Product(*(nn.Parameter(part.to(dtype)) for part in (h, weight, bias)))
    return product, torch.randint(V, (3, 4)), torch.randn(3, 4, dtype=dtype)


def theirs(product: Product, symbols: Tensor) -> Tensor:
    logits = F.linear(product.h, product.weight, product.bias)
    return -F.cross_entropy(logits.reshape(-1, V), symbols.reshape(-1), reduction="none").reshape(symbols.shape)


def ours(product: Product, symbols: Tensor) -> Tensor:
    return log_prob(F.linear(product.h, product.weight, product.bias), symbols, product)


@pytest.mark.parametrize("block", [1, 2 * V, 5 * V, 1 << 22])
def test_values_and_gradients_are_torchs(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax_loss, "BLOCK", block)
    product, symbols, weights = problem()
    found, wanted = ours(product, symbols), theirs(product, symbols)
    torch.testing.assert_close(found, wanted)
    parts = (product.h, product.weight, product.bias)
    got, want = (torch.autograd.grad((weights * y).sum(), parts) for y in (found, wanted))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def test_it_can_be_differentiated_twice() -> None:
    product, symbols, _ = problem()
    parts = tuple(product)
    assert torch.autograd.gradgradcheck(lambda *given: ours(Product(*given), symbols), parts)


def test_a_read_out_makes_no_second_array_as_large_as_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax_loss, "BLOCK", 2 * 400)
    readout, h = Softmax(H, 400), torch.randn(64, 1, H, requires_grad=True)
    predicted, symbols = readout(h), torch.zeros(64, 1, dtype=torch.long)
    made: list[int] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            found = func(*args, **(kwargs or {}))
            for part in found if isinstance(found, tuple | list) else (found,):
                if isinstance(part, Tensor) and part.untyped_storage().data_ptr() != logits:
                    made.append(part.untyped_storage().nbytes() // 4)
            return found

    logits = predicted.logits.untyped_storage().data_ptr()
    with Watch():
        predicted.log_prob(symbols).sum().backward()
    assert readout.linear.weight.grad is not None and max(made) <= 400 * H


def test_logits_of_no_product_and_without_gradient() -> None:
    product, symbols, _ = problem()
    logits = F.linear(product.h, product.weight, product.bias).detach().requires_grad_()
    (found,) = torch.autograd.grad(log_prob(logits, symbols).sum(), logits)
    torch.testing.assert_close(found, F.one_hot(symbols, V) - logits.softmax(-1))
    with torch.no_grad():
        torch.testing.assert_close(ours(product, symbols), theirs(product, symbols))


def test_narrow_activations_keep_their_type() -> None:
    readout, h = Softmax(H, V), torch.randn(4, H, dtype=torch.bfloat16, requires_grad=True)
    readout(h).log_prob(torch.zeros(4, dtype=torch.long)).sum().backward()
    assert h.grad is not None and h.grad.dtype == torch.bfloat16
