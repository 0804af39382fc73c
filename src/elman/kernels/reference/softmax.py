"""log P(symbol) under a softmax over h W^T + b, by way of its logits."""

import torch.nn.functional as F
from torch import Tensor


def softmax_log_prob(h: Tensor, weight: Tensor, bias: Tensor | None, symbols: Tensor) -> Tensor:
    """log P(symbol) (M,) of symbols (M,) under a softmax over h W^T + b: h (M, D), weight (V, D), bias (V,)."""
    # Not cross_entropy, to which -100 is a symbol that costs nothing.
    return F.linear(h, weight, bias).log_softmax(-1).gather(1, symbols[:, None]).squeeze(1)


def softmax_log_prob_sum(h: Tensor, weight: Tensor, bias: Tensor | None, symbols: Tensor) -> Tensor:
    """The sum of them."""
    return softmax_log_prob(h, weight, bias, symbols).sum()


def softmax_log_prob_back(
    h: Tensor, weight: Tensor, bias: Tensor | None, symbols: Tensor, g: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The gradients of sum over m of g[m] log P(symbols[m]) with respect to h, weight and bias."""
    q = g[:, None] * (F.one_hot(symbols, len(weight)) - F.linear(h, weight, bias).softmax(-1))
    return q @ weight, q.t() @ h, None if bias is None else q.sum(0)
