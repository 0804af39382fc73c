"""A tagger against torch.nn and pytorch-crf: `python -m bench.tagging`.

Training: words 100 wide and characters by 2 x 25 units, one bidirectional layer of 200 units, 23 tags, 32 sentences
of 5 to 45 words; the whole step, with clipping and AdamW (fused). The peer's bidirectional layers are two padded ones
with a gather (bench.with_torch) or, in a row of its own, packed sequences. The CRF alone: its loss with gradient, and
its best path. Both sides begin with the same weights, their losses are compared, and they run in this process, in turn.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

import elman
from bench.turns import Report, Result, in_turn, parser, result
from bench.with_torch import Gathered, Packed
from elman.data import Batch
from elman.model import SequenceModel
from elman.nn.crf import LinearChain
from elman.tasks.tag import model as tagger
from elman.tasks.tag.data import Sentence
from elman.tasks.tag.lexicon import Lexicon, batch_of
from elman.tasks.tag.model import TagModelConfig

TAGS = [f"T{i:02}" for i in range(23)]
BATCH = 32


def sentences(n: int) -> list[Sentence]:
    """Made-up words of 1 to 12 letters, as often as words of a language are."""
    random = np.random.default_rng(0)
    words = ["".join(chr(97 + c) for c in random.integers(0, 26, int(k))) for k in random.integers(1, 13, 5000)]
    chances = 1 / np.arange(10, 5010)
    chosen = [random.choice(5000, int(k), p=chances / chances.sum()) for k in random.integers(5, 46, n)]
    return [Sentence([words[i] for i in row], [TAGS[i % 23] for i in row]) for row in chosen]


class Plain(nn.Module):
    """The same model as one would write it with torch.nn, with the weights of ours."""

    def __init__(self, ours: SequenceModel, how: type[Packed] | type[Gathered]) -> None:
        super().__init__()
        from torchcrf import CRF

        characters, readout = ours.embed.characters, ours.readout
        self.words = nn.Embedding.from_pretrained(ours.embed.words.weight.detach().clone(), freeze=False)
        self.characters = nn.Embedding.from_pretrained(characters.embed.weight.detach().clone(), freeze=False)
        self.spell, self.read = how(elman.to_torch(characters.core)), how(elman.to_torch(ours.core))
        self.out, self.crf = nn.Linear(400, len(TAGS)), CRF(len(TAGS), batch_first=True)
        self.out.load_state_dict(readout.linear.state_dict())
        with torch.no_grad():
            self.crf.start_transitions.copy_(readout.start)
            self.crf.end_transitions.copy_(readout.stop)
            self.crf.transitions.copy_(readout.transition)

    def forward(self, batch: Batch) -> Tensor:
        x, y = batch.x, batch.y
        there = x.sizes > 0  # type: ignore[union-attr]
        _, h = self.spell(self.characters(x.characters[there]), x.sizes[there])  # type: ignore[union-attr]
        spelt = h.new_zeros(*there.shape, 50)
        spelt[there] = torch.cat([h[0], h[1]], -1)
        read, _ = self.read(torch.cat([self.words(x.words), spelt], -1), batch.lengths)  # type: ignore[union-attr]
        loss: Tensor = -self.crf(self.out(read), y.clamp(min=0), mask=there, reduction="sum")  # type: ignore[union-attr]
        return loss


def training(rounds: int) -> list[Result]:
    """Words a second, ours and theirs."""
    data = sentences(BATCH * 8)
    lexicon = Lexicon.fit(data, TAGS, "none", "none", 1, False)
    batches = [batch_of([lexicon.example(s) for s in data[i : i + BATCH]]) for i in range(0, len(data), BATCH)]
    config = TagModelConfig(size=200, case_size=0, word_dropout=0.0, embedding_dropout=0.0, readout_dropout=0.0)
    torch.manual_seed(0)
    ours = tagger.build(config, lexicon)
    assert isinstance(ours, SequenceModel)
    theirs = [Plain(ours, how) for how in (Gathered, Packed)]
    for plain in theirs:
        torch.testing.assert_close(tagger.loss(ours, batches[0])[0], plain(batches[0]), rtol=1e-5, atol=0)

    def stepper(model: nn.Module, loss: Callable[[Batch], Tensor]) -> Callable[[], None]:
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

        def once_through() -> None:
            for batch in batches:
                optimiser.zero_grad()
                (loss(batch) / int(batch.lengths.sum())).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 5.0)
                optimiser.step()

        return once_through

    steps = [stepper(ours, lambda batch: tagger.loss(ours, batch)[0]), *(stepper(plain, plain) for plain in theirs)]
    mine, *others = in_turn(steps, rounds)
    words = sum(int(batch.lengths.sum()) for batch in batches)
    name = "train a BiLSTM-CRF tagger"
    return [
        result(name, f"torch {how} and pytorch-crf", mine, other, per_round=words, unit="words/s")
        for how, other in zip(("gather", "packed"), others, strict=True)
    ]


def crf(B: int, T: int, K: int, rounds: int) -> list[Result]:
    """The loss with its gradient, and the best path."""
    from torchcrf import CRF

    e, y = torch.randn(B, T, K, requires_grad=True), torch.randint(0, K, (B, T))
    theirs, lengths = CRF(K, batch_first=True), torch.full((B,), T)
    start, stop, moves = theirs.start_transitions, theirs.end_transitions, theirs.transitions
    chain = LinearChain(e, lengths, start, stop, moves)
    fixed = LinearChain(*(tensor.detach() for tensor in (e, lengths, start, stop, moves)))
    torch.testing.assert_close(chain.log_prob(y), theirs(e, y, reduction="none"), rtol=1e-4, atol=1e-2)
    whole = torch.ones(B, T, dtype=torch.bool)  # else pytorch-crf makes a mask of bytes, which is slower
    paths = torch.tensor(theirs.decode(fixed.emissions, whole))
    torch.testing.assert_close(fixed.log_prob(fixed.mode), fixed.log_prob(paths))
    loss = in_turn([lambda: chain.log_prob(y).sum().backward(), lambda: theirs(e, y, whole).backward()], rounds)
    path = in_turn([lambda: fixed.mode, lambda: theirs.decode(fixed.emissions, whole)], rounds)
    return [
        result(f"CRF ({B},{T},{K}), {what}", "pytorch-crf", *times)
        for what, times in (("loss with its gradient", loss), ("best path", path))
    ]


def main() -> None:
    flags = parser("tagging", __doc__, 12)
    flags.add_argument("--threads", type=int, default=2)
    options = flags.parse_args()
    torch.set_num_threads(options.threads)
    report = Report(options.json)
    report.add(*training(options.rounds))
    for shape in ((32, 50, 23), (32, 200, 50)):
        report.add(*crf(*shape, options.rounds))
    report.end()


if __name__ == "__main__":
    main()
