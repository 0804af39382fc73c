"""The backward pass in bfloat16 where Torch computes it: `python -m bench.autocast`.

Whole training steps (loss, backward pass, clipping, AdamW), as they are and with the backward pass under
`torch.autocast("cpu", bfloat16)`. Our kernels take float32 and are not affected; autocast reaches the products that are
Torch's: none in the forward pass, some gradients of weights in the backward pass. A row's ratio is float32's time over
autocast's in the same round: above 1 autocast is faster. `error` is how far the gradient is from float32's, as a share
of its norm. Both sides run in this process, in turn.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from bench.turns import Report, in_turn, parser, result
from elman.tasks.image.model import ImageModelConfig, Reader
from elman.tasks.image.model import build as build_image
from elman.tasks.text.lm import LMModelConfig
from elman.tasks.text.lm import build as build_lm
from elman.tasks.translate.data import batch_of
from elman.tasks.translate.seq2seq import smoothed_loss

B, T, V = 32, 64, 256
Loss = Callable[[], Tensor]


def language_model(cell: str, size: int) -> tuple[nn.Module, Loss]:
    model = build_lm(LMModelConfig(cell=cell, size=size, layers=2), V)
    x = torch.randint(V, (B, T + 1))
    return model, lambda: -model.scan(x[:, :-1])[0].log_prob(x[:, 1:]).mean()


def translation() -> tuple[nn.Module, Loss]:
    from bench.translation import BATCH, ours, rows

    model, batch = ours("additive"), batch_of(rows(BATCH))
    inside = torch.arange(batch.y.shape[1]) < batch.lengths[:, None]
    return model, lambda: smoothed_loss(model.forced(batch.x, batch.lengths), batch.y, 0.0)[inside].mean()


def images() -> tuple[nn.Module, Loss]:
    model = build_image(ImageModelConfig(size=32, hidden=64), Reader(28, 28, 1.0, "fixed"))
    x = (torch.rand(16, 28, 28) < 0.2).long()
    return model, lambda: -model.scan(x)[0].log_prob(x).mean()


ROWS = {
    "lm, 2 x GRU 256": lambda: language_model("gru", 256),
    "lm, 2 x LSTM 256": lambda: language_model("lstm", 256),
    "lm, 2 x GRU 512": lambda: language_model("gru", 512),
    "lm, 2 x LSTM 512": lambda: language_model("lstm", 512),
    "lm, 2 x minGRU 512": lambda: language_model("mingru", 512),
    "lm, 2 x LRU 512": lambda: language_model("lru", 512),
    "translation, GRU 256, additive": translation,
    "images, Diagonal BiLSTM 32": images,
}


class Products(TorchDispatchMode):
    """Counts the products that Torch computes."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += func.overloadpacket.__name__ in ("mm", "addmm", "bmm", "baddbmm", "convolution")
        return func(*args, **(kwargs or {}))


def _backward(loss: Tensor, autocast: bool) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss.backward()


def gradients(model: nn.Module, loss: Loss, autocast: bool) -> Tensor:
    model.zero_grad()
    _backward(loss(), autocast)
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def step_of(model: nn.Module, loss: Loss, autocast: bool) -> Callable[[], None]:
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        optimiser.zero_grad()
        _backward(loss(), autocast)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()

    return step


def main() -> None:
    options = parser("autocast", __doc__, 9).parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 2)))
    report = Report(options.json)
    for name, make in ROWS.items():
        torch.manual_seed(0)
        model, loss = make()
        with Products() as forward:
            value = loss()
        with Products() as backward:
            value.backward()
        exact, rough = (gradients(model, loss, autocast) for autocast in (False, True))
        error = float((rough - exact).norm() / exact.norm())
        plain, cast = in_turn([step_of(model, loss, False), step_of(model, loss, True)], options.rounds)
        report.add(result(name, "float32", cast, plain))
        print(
            f"    products: {forward.count} forward, {backward.count} backward; error {error:.1e}", file=report.messages
        )
    report.end()


if __name__ == "__main__":
    main()
