"""Images against torch: `python -m bench.images`.

Training one Diagonal BiLSTM layer of 32 units behind a masked convolution of 7 x 7, with a read-out of 64 units, on
images of 28 x 28 bits: the whole step, with clipping and AdamW. The peer is the same model as one writes it with Torch:
maps skewed so that a diagonal is a column, what pixels read projected for all of them at once, then a loop over the
diagonals, each one product for all rows and images: in Python and as TorchScript, of which the faster counts. It begins
with our weights, and its likelihood is checked against ours. All run in this process, in turn, on one thread and two.
"""

import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.turns import Report, in_turn, parser, result
from elman.model import SequenceModel
from elman.tasks.image import DiagonalBiLSTM, MaskedConvolution
from elman.tasks.image.model import ImageModelConfig, Reader, build

SIDE, SIZE, HIDDEN = 28, 32, 64


def skewed(x: Tensor) -> Tensor:
    """(B, R, C, N) -> (B, R, R + C - 1, N): row r begins r places later."""
    B, R, C, N = x.shape
    return F.pad(x, (0, 0, 0, R)).reshape(B, R * (C + R), N)[:, :-R].reshape(B, R, C + R - 1, N)


def straight(x: Tensor, C: int) -> Tensor:
    """The inverse of `skewed`."""
    B, R, _, N = x.shape
    return F.pad(x.reshape(B, -1, N), (0, 0, 0, R)).reshape(B, R, C + R, N)[:, :, :C]


def diagonals(u: Tensor, inside: Tensor, W: Tensor) -> Tensor:
    """h of all diagonals (B, R, R + C - 1, K) from what inputs give to the gates."""
    h = u.new_zeros(u.shape[0], u.shape[1], W.shape[0] // 4)
    c = h
    hs: list[Tensor] = []
    for us, there in zip(u.unbind(2), inside.unbind(2)):  # noqa: B905 (TorchScript has no `strict`)
        above = F.pad(h, [0, 0, 1, 0])[:, :-1]
        i, g, o, f = (us + F.linear(torch.cat([h, above], -1), W)).chunk(4, -1)
        c = (torch.sigmoid(i) * torch.tanh(g) + torch.sigmoid(f) * c) * there
        h = torch.sigmoid(o) * torch.tanh(c)
        hs.append(h)
    return torch.stack(hs, 2)


LOOPS = {"torch loop": diagonals, "torch TorchScript": torch.jit.script(diagonals)}


class Half(nn.Module):
    """An LSTM over diagonals, from the left."""

    def __init__(self, ours: nn.Module, loop: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.loop = loop
        self.W, self.U, self.b = (nn.Parameter(getattr(ours, name).detach().clone()) for name in "WUb")

    def forward(self, x: Tensor) -> Tensor:
        inside = skewed(torch.ones(1, *x.shape[1:3], 1))
        return straight(self.loop(skewed(F.linear(x, self.U, self.b)), inside, self.W), x.shape[2])


class Plain(nn.Module):
    """The same model."""

    def __init__(self, ours: SequenceModel, loop: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        first, block = ours.core.first, ours.core.layers[0]
        assert isinstance(first, MaskedConvolution) and isinstance(block.layer, DiagonalBiLSTM)
        k, N = first.reach, len(first.U)
        square = torch.zeros(N, 1, 2 * k + 1, 2 * k + 1)
        square.view(N, -1)[:, : first.U.shape[1]] = first.U.detach()
        self.first, self.bias = nn.Parameter(square), nn.Parameter(first.b.detach().clone())
        self.register_buffer("mask", torch.zeros_like(square))
        self.mask.view(N, -1)[:, : first.U.shape[1]] = 1
        self.left, self.right = Half(block.layer.left, loop), Half(block.layer.right, loop)
        self.out = linear(block.V, block.d)
        hidden, last = ours.readout.hidden, ours.readout.readout.linear
        self.hidden, self.last = linear(hidden.weight, hidden.bias), linear(last.weight, last.bias)

    def forward(self, image: Tensor) -> Tensor:
        x = F.conv2d(image[:, None] * 2.0 - 1, self.first * self.mask, self.bias, padding=self.mask.shape[-1] // 2)
        x = x.permute(0, 2, 3, 1)
        right = self.right(x.flip(2)).flip(2)
        x = x + self.out(self.left(x) + F.pad(right, (0, 0, 0, 0, 1, 0))[:, :-1])
        return self.last(self.hidden(x.relu()).relu())[..., 0]


def linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0])
    made.weight.data, made.bias.data = weight.detach().clone(), bias.detach().clone()
    return made


def trainer(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimiser.zero_grad()
        loss().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()

    return step


def main() -> None:
    flags = parser("images", __doc__, 9)
    flags.add_argument("--batch", type=int, default=16)
    options = flags.parse_args()
    torch.manual_seed(0)
    ours = build(ImageModelConfig(size=SIZE, hidden=HIDDEN), Reader(SIDE, SIDE, 1.0, "fixed"))
    images = (torch.rand(options.batch, SIDE, SIDE) < 0.2).long()
    bits = images.float()

    def our_loss() -> Tensor:
        return -ours.scan(images)[0].log_prob(images).sum() / images.numel()

    def peer(loop: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[], None]:
        theirs = Plain(ours, loop)

        def their_loss() -> Tensor:
            return F.binary_cross_entropy_with_logits(theirs(bits), bits)

        torch.testing.assert_close(our_loss(), their_loss(), rtol=1e-5, atol=0)
        return trainer(theirs, their_loss)

    peers = {name: peer(loop) for name, loop in LOOPS.items()}
    steps = [trainer(ours, our_loss), *peers.values()]
    report = Report(options.json)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        name = f"train a Diagonal BiLSTM on images of {SIDE} x {SIDE}{', 1 thread' * (threads == 1)}"
        mine, *theirs = in_turn(steps, options.rounds)
        who, best = min(zip(peers, theirs, strict=True), key=lambda pair: statistics.median(pair[1]))
        report.add(result(name, who, mine, best, per_round=options.batch, unit="images/s"))
    report.end()


if __name__ == "__main__":
    main()
