"""Translation against torch.nn: `python -m bench.translation`.

Training: embeddings and units 256, a bidirectional GRU encoder, 64 pairs of 5 to 25 symbols, V = 2,000; the whole step,
with clipping and AdamW (fused). The peer's encoder is two padded layers with a gather (bench.with_torch). Additive: it
attends in a Python loop over GRU steps, the projections of memory and inputs outside it. Luong: its decoder is one GRU
and its attention a few batched products. Both begin with the same weights, and their losses are compared.

Beam: 5 beginnings, the peer batched over sentences and beams with its additive model, both 30 symbols at most: of 256
made-up sentences by weights as they begin, or with `--run RUN --source test.en` of a file by those of a run (gru, one
layer of 256, embeddings of 256, additive attention, not tied), which the peer is given too; how many sentences both
find the same symbols for is printed. Both sides run in this process, in turn.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import elman
from bench.turns import Report, in_turn, parser, result
from bench.with_torch import Gathered
from elman.compose.attention import Additive
from elman.data.vocabulary import Words
from elman.decoding.beam import beam
from elman.tasks.translate.data import Pairs, Vocabularies, batch_of
from elman.tasks.translate.model import TranslateModelConfig, build
from elman.tasks.translate.seq2seq import EncoderDecoder, smoothed_loss

V, SIZE, BATCH, BEAMS, MOST = 2000, 256, 64, 5, 30


def rows(n: int) -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(0)
    lengths = np.sort(random.integers(5, 26, n))
    return [
        (random.integers(2, V, k), random.integers(2, V, int(random.integers(max(3, k - 3), k + 4)))) for k in lengths
    ]


class Plain(nn.Module):
    """The same models as one would write them with torch.nn."""

    def __init__(self, additive: bool, symbols: int = V) -> None:
        super().__init__()
        self.additive, self.symbols = additive, symbols
        self.source, self.target = nn.Embedding(symbols, SIZE), nn.Embedding(symbols, SIZE)
        self.encoder = Gathered(nn.GRU(SIZE, SIZE, bidirectional=True, batch_first=True))
        self.bridge = nn.Linear(2 * SIZE, SIZE)
        self.cell = nn.GRUCell(2 * SIZE, SIZE)  # the context's part; that of the inputs is hoisted
        self.inputs = nn.Linear(SIZE, 3 * SIZE)
        self.decoder = nn.GRU(SIZE, SIZE, batch_first=True)
        self.query, self.key = nn.Linear(SIZE, SIZE, bias=False), nn.Linear(2 * SIZE, SIZE, bias=additive)
        self.v = nn.Linear(SIZE, 1, bias=False)
        self.join = nn.Linear((4 if additive else 3) * SIZE, SIZE)
        self.out = nn.Linear(SIZE, symbols)

    def encode(self, x: Pairs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        memory, h = self.encoder(self.source(x.source), x.sizes)
        past = torch.arange(memory.shape[1]) >= x.sizes[:, None]
        return memory, self.key(memory), past, torch.tanh(self.bridge(torch.cat([h[0], h[1]], -1)))

    def step(self, u: Tensor, h: Tensor, memory: Tensor, keys: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        e = self.v(torch.tanh(self.query(h)[:, None] + keys))[..., 0].masked_fill(past, -torch.inf)
        c = torch.bmm(e.softmax(-1)[:, None], memory)[:, 0]
        gates = u + nn.functional.linear(c, self.cell.weight_ih)
        r, z, n = gates.chunk(3, -1)
        hr, hz, hn = nn.functional.linear(h, self.cell.weight_hh, self.cell.bias_hh).chunk(3, -1)
        r, z = torch.sigmoid(r + hr), torch.sigmoid(z + hz)
        return (1 - z) * torch.tanh(n + r * hn) + z * h, c

    def forward(self, x: Pairs) -> Tensor:
        memory, keys, past, h = self.encode(x)
        inputs = self.target(x.target)
        if not self.additive:
            hs, _ = self.decoder(inputs, h[None])
            e = torch.bmm(hs, keys.transpose(1, 2)).masked_fill(past[:, None], -torch.inf)
            found = torch.cat([hs, torch.bmm(e.softmax(-1), memory)], -1)
            return self.out(torch.tanh(self.join(found)))
        u, both = self.inputs(inputs), []
        for t in range(inputs.shape[1]):
            h, c = self.step(u[:, t], h, memory, keys, past)
            both.append(torch.cat([h, c], -1))
        return self.out(torch.tanh(self.join(torch.cat([torch.stack(both, 1), inputs], -1))))

    @torch.inference_mode()
    def search(self, x: Pairs) -> Tensor:
        """A beam, batched over sentences and beginnings, until all have ended."""
        memory, keys, past, h = (part.repeat_interleave(BEAMS, 0) for part in self.encode(x))
        B, V = len(x.sizes), self.symbols
        token = torch.zeros(B * BEAMS, dtype=torch.int64)
        sums = torch.full((B, BEAMS), -torch.inf)
        sums[:, 0] = 0
        done, path = torch.zeros(B * BEAMS, dtype=torch.bool), torch.zeros(B * BEAMS, 0, dtype=torch.int64)
        for _ in range(MOST):
            inputs = self.target(token)
            h, c = self.step(self.inputs(inputs), h, memory, keys, past)
            log_p = self.out(torch.tanh(self.join(torch.cat([h, c, inputs], -1)))).log_softmax(-1)
            log_p[done] = -torch.inf
            log_p[done, 0] = 0
            sums, best = (sums[..., None] + log_p.view(B, BEAMS, V)).view(B, -1).topk(BEAMS, -1)
            parent = (torch.arange(B)[:, None] * BEAMS + best // V).view(-1)
            token = (best % V).view(-1)
            h, done, path = h[parent], done[parent] | (token == 0), torch.cat([path[parent], token[:, None]], 1)
            if done.all():
                break
        return path


def ours(attention: str) -> EncoderDecoder:
    words = Words([str(i) for i in range(V - 2)])
    config = TranslateModelConfig(
        size=SIZE, embedding_size=SIZE, attention=attention, embedding_dropout=0.0, readout_dropout=0.0, smoothing=0.0
    )
    return build(config, Vocabularies(words, words))


def trainer(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimiser.zero_grad()
        loss().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()

    return step


def training(attention: str) -> tuple[Callable[[], None], Callable[[], None]]:
    batch = batch_of(rows(BATCH))
    torch.manual_seed(0)
    mine = ours(attention).train()
    plain = peer_of(mine).train()
    inside = torch.arange(batch.y.shape[1]) < batch.lengths[:, None]
    wanted = batch.y.masked_fill(~inside, -100).flatten()  # -100 is left out, without a copy of the logits

    def own() -> Tensor:
        return smoothed_loss(mine.forced(batch.x, batch.lengths), batch.y, 0.0)[inside].mean()

    def theirs() -> Tensor:
        return nn.functional.cross_entropy(plain(batch.x).flatten(0, 1), wanted)

    torch.testing.assert_close(own(), theirs(), rtol=1e-5, atol=0)
    return trainer(mine, own), trainer(plain, theirs)


def peer_of(mine: EncoderDecoder) -> Plain:
    """The peer with the weights of ours."""
    decoder, additive = mine.decoder, isinstance(mine.decoder, Additive)
    plain = Plain(additive, mine.target.weight.shape[0])
    plain.encoder = Gathered(elman.to_torch(mine.encoder))
    weights = {
        plain.source.weight: mine.source.weight, plain.target.weight: mine.target.weight,
        plain.bridge.weight: mine.bridge.W, plain.bridge.bias: mine.bridge.b, plain.key.weight: decoder.K,
        plain.join.weight: decoder.O, plain.join.bias: decoder.o,
        plain.out.weight: mine.readout.linear.weight, plain.out.bias: mine.readout.linear.bias,
    }  # fmt: skip
    if additive:
        cell = decoder.core
        E, zeros = cell.input_size - decoder.memory_size, torch.zeros(2 * SIZE)
        weights |= {
            plain.cell.weight_ih: cell.U[:, E:], plain.inputs.weight: cell.U[:, :E], plain.inputs.bias: cell.b,
            plain.cell.weight_hh: cell.W, plain.cell.bias_hh: torch.cat([zeros, cell.c]),
            plain.query.weight: decoder.Q, plain.key.bias: decoder.k, plain.v.weight: decoder.v[None],
        }  # fmt: skip
    else:
        plain.decoder = elman.to_torch(decoder.core)
    with torch.no_grad():
        for theirs, own in weights.items():
            theirs.copy_(own)
    return plain.eval()


def searching(run: str | None, source: str | None) -> tuple[Callable[[], object], Callable[[], object]]:
    torch.manual_seed(0)
    if run and source:
        translator = elman.load(run)
        mine, lines = translator.model, Path(source).read_text().splitlines()
        sources = sorted((translator.symbols.source.encode(line) for line in lines), key=len)
    else:
        mine, sources = ours("additive").eval(), [source for source, _ in rows(256)]
    plain = peer_of(mine)
    given = [(one, one[:0]) for one in sources]
    batches = [batch_of(given[i : i + BATCH]).x for i in range(0, len(given), BATCH)]

    @torch.inference_mode()
    def own() -> list[list[int]]:
        found = []
        for x in batches:
            model, state = mine.given(x.source, x.sizes)
            start = torch.zeros(len(x.sizes), dtype=torch.int64)
            best = beam(model, state, start, num_beams=BEAMS, max_new_tokens=MOST, length_penalty=0.0)
            found += [row[0].tokens for row in best]
        return found

    def theirs() -> list[list[int]]:
        return [row for x in batches for row in plain.search(x)[::BEAMS].tolist()]

    same = sum(a == b[: len(a)] for a, b in zip(own(), theirs(), strict=True))
    print(f"of {len(sources)} sentences both find the same symbols for {same}", file=sys.stderr)
    return own, theirs


NAMES = {
    "additive": "train translation, additive attention",
    "general": "train translation, general attention",
    "beam": "beam of 5",
}


def main() -> None:
    flags = parser("translation", __doc__, 20)
    flags.add_argument("--threads", type=int, default=2)
    flags.add_argument("--only", choices=tuple(NAMES))
    flags.add_argument("--run", help="whose weights search")
    flags.add_argument("--source", help="the file of sentences that are translated by them")
    options = flags.parse_args()
    torch.set_num_threads(options.threads)
    report = Report(options.json)
    for what, name in NAMES.items():
        if options.only in (None, what):
            pair = searching(options.run, options.source) if what == "beam" else training(what)
            # A search takes a second: the rounds of a training step are many.
            rounds = max(5, options.rounds // 4) if what == "beam" else options.rounds
            report.add(result(name, "torch", *in_turn(pair, rounds)))
    report.end()


if __name__ == "__main__":
    main()
