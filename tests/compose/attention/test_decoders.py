"""Decoders that read a memory: the laws, a literal transcription of the papers, gradients, and what they refuse."""

import pytest
import torch
from torch import Tensor

from elman import kernels, laws
from elman import state as states
from elman.cells import cell
from elman.compose.attention import Additive, Bound, Covering, Decoder, Fixed, Layers, Luong, Remember
from elman.errors import InputError
from elman.stream import Stream

D, M, H = 3, 5, 4
LENGTHS = torch.tensor([6, 1, 0, 4, 3])

DECODERS = {
    "additive gru": lambda: Additive(cell("gru", D + M, H), M),
    "additive lstm": lambda: Additive(cell("lstm", D + M, H), M, size=6, attention_size=7),
    "additive elman": lambda: Additive(cell("elman", D + M, H), M),
    "additive lru": lambda: Additive(cell("lru", D + M, H), M),
    "dot": lambda: Luong(cell("gru", D, M), M, score="dot"),
    "general": lambda: Luong(cell("lstm", D, H), M),
    "fed dot": lambda: Luong(cell("gru", D + M, M), M, score="dot", feeding=True),
    "fed general": lambda: Luong(cell("lstm", D + 6, H), M, feeding=True, size=6),
    "fixed": lambda: Fixed(cell("gru", D + M, H), M),
    "layers": lambda: Layers(Additive(cell("gru", D + M, H), M), cell("lstm", H, 3)),
}


def bound(name: str, dtype: torch.dtype = torch.float32, rows: int = 5) -> Bound:
    torch.manual_seed(1)
    decoder: Decoder = DECODERS[name]().to(dtype)
    memory = torch.randn(rows, 6, M, dtype=dtype)
    with torch.no_grad():
        return decoder.given(memory, LENGTHS[:rows])


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("kernel", kernels.available())
def test_laws(name: str, kernel: str) -> None:
    with kernels.use(kernel):
        report = laws.check(bound(name))
    assert report.ok and report.exact == (kernel == "native"), report


@pytest.mark.slow
@pytest.mark.skipif("native" not in kernels.available(), reason="needs the native kernels")
@pytest.mark.parametrize("name", [name for name in DECODERS if name != "additive lru"])
def test_a_stream_is_native_and_its_rows_share_a_memory(name: str) -> None:
    """Any rows, in any order, of a memory that was repeated without a copy: the bits of a scan."""
    core = bound(name).repeat(3)
    x = torch.randn(15, 4, D)
    with torch.no_grad():
        wanted, last = core.scan(x)
    stream = Stream(core, 15)
    assert stream.native
    found = torch.zeros_like(wanted)
    for t in range(4):
        for rows in torch.randperm(15).split([4, 1, 10]):
            found[rows, t] = stream.step(x[rows, t], rows)
    assert torch.equal(found, wanted)
    states.map(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=0), stream.state, last)


@pytest.mark.skipif("native" not in kernels.available(), reason="needs the native kernels")
@pytest.mark.parametrize("name", ["additive gru", "fed general", "general"])
def test_coverage_is_streamed(name: str) -> None:
    core = bound(name)
    core = Covering(core.decoder, core.held).repeat(2)
    x = torch.randn(10, 3, D)
    stream = Stream(core, 10)
    assert stream.native
    for t in range(3):
        stream.step(x[:, t])
    with torch.no_grad():
        _, last = core.scan(x)
    wanted = (LENGTHS > 0).float().repeat_interleave(2) * 3
    torch.testing.assert_close(stream.state.coverage.sum(1), wanted)
    torch.testing.assert_close(stream.state.coverage, last.coverage)


def test_a_stream_has_the_rows_of_the_memory() -> None:
    with pytest.raises(InputError, match="a memory for 5"):
        Stream(bound("additive gru"), 4).step(torch.zeros(4, D))


def transcribed(decoder: Additive, memory: Tensor, x: Tensor) -> Tensor:
    """Bahdanau et al., appendix A, row by row and sum by sum, for a GRU that starts at zero."""
    h, ys = torch.zeros(H, dtype=x.dtype), []
    for t in range(len(x)):
        e = []
        for m in memory:
            total = torch.zeros((), dtype=x.dtype)
            for i in range(len(decoder.v)):
                total = total + decoder.v[i] * torch.tanh(
                    (decoder.Q[i] * h).sum() + (decoder.K[i] * m).sum() + decoder.k[i]
                )
            e.append(total.exp())
        a = [value / sum(e) for value in e]
        c = sum((weight * m for weight, m in zip(a, memory, strict=True)), torch.zeros(M, dtype=x.dtype))
        gru = torch.nn.GRUCell(D + M, H, dtype=x.dtype)
        core = decoder.core
        with torch.no_grad():
            gru.weight_ih.copy_(core.U), gru.weight_hh.copy_(core.W), gru.bias_ih.copy_(core.b)
            gru.bias_hh.zero_()[2 * H :].copy_(core.c)
        h = gru(torch.cat([x[t], c])[None], h[None])[0]
        ys.append(torch.tanh(decoder.O @ torch.cat([h, c, x[t]]) + decoder.o))
    return torch.stack(ys)


def test_additive_attention_is_the_paper_s() -> None:
    core = bound("additive gru", torch.float64)
    x = torch.randn(5, 4, D, dtype=torch.float64)
    y, _ = core.scan(x)
    for b in (0, 1, 2, 3):
        row = core.memory.values[b, : LENGTHS[b]]
        torch.testing.assert_close(y[b], transcribed(core.decoder, row, x[b]), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kernel", kernels.available())
@pytest.mark.parametrize("name", ["additive gru", "additive lstm", "fed general", "fed dot", "general", "fixed"])
def test_gradients(name: str, kernel: str) -> None:
    """With respect to inputs, state, memory and parameters, with ragged rows and resets."""
    torch.manual_seed(0)
    decoder = DECODERS[name]().double()
    memory = torch.randn(3, 4, M, dtype=torch.float64, requires_grad=True)
    x = torch.randn(3, 3, D, dtype=torch.float64, requires_grad=True)
    start = states.map(lambda leaf: torch.randn_like(leaf).requires_grad_(), decoder.init_state(3))
    reset = torch.tensor([[False, True, False], [True, False, False], [False, False, True]])
    names, parameters = zip(*decoder.named_parameters(), strict=True)

    def run(x: Tensor, memory: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        leaves = iter(rest[: len(states.leaves(start))])
        state = states.map(lambda _: next(leaves), start)
        given = dict(zip(names, rest[len(states.leaves(start)) :], strict=True))
        whole = torch.nn.utils.stateless._reparametrize_module(decoder, given)
        with whole:
            core = decoder.given(memory, torch.tensor([4, 1, 0]))
            y, last = core.scan(x, state, lengths=torch.tensor([3, 2, 1]), reset=reset)
        return (y, *states.leaves(last))

    with kernels.use(kernel):
        assert torch.autograd.gradcheck(run, (x, memory, *states.leaves(start), *parameters), fast_mode=True)


def test_alignments_are_what_the_scan_used() -> None:
    for name in ("additive gru", "general", "fed general", "layers"):
        core, x = bound(name), torch.randn(5, 4, D)
        a = core.alignments(x)
        assert a.shape == (5, 4, 6)
        torch.testing.assert_close(a.sum(-1), (LENGTHS > 0).float()[:, None].expand(5, 4))
        assert (a[1, :, 1:] == 0).all() and (a[2] == 0).all()


def test_a_memory_can_be_saved_with_the_state(tmp_path) -> None:
    core = bound("additive gru")
    _, state = core.scan(torch.randn(5, 4, D))
    states.save(tmp_path / "both.safetensors", (core.memory, state))
    memory, again = states.load(tmp_path / "both.safetensors", (core.take([]).memory, core.init_state(0)))
    other, x = Bound(core.decoder, memory), torch.randn(5, 2, D)
    assert torch.equal(other.scan(x, again)[0], core.scan(x, state)[0])


def test_remember_keeps_the_laws() -> None:
    assert laws.check(Remember(cell("lru", 3, 4))).ok


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Luong(cell("gru", 3, 4), 5, score="dot"), "must be equal"),
        (lambda: Additive(cell("gru", 5, 4), 5), "build it with"),
        (lambda: Luong(cell("gru", 3, 4), 5, score="cosine"), "score is 'cosine'"),
        (lambda: Layers(Fixed(cell("gru", 8, 4), 5), cell("gru", 5, 4)), "above reads 5"),
        (lambda: bound("dot").scan(torch.zeros(4, 2, D)), "each row needs its own memory"),
        (lambda: bound("dot").decoder.given(torch.zeros(2, 3, 4)), r"\(B, S, 5\)"),
        (lambda: bound("dot").decoder.given(torch.zeros(2, 3, 5), torch.tensor([3, 4])), "in \\[0, 3\\]"),
        (lambda: bound("fixed").alignments(torch.zeros(5, 2, D)), "does not attend"),
    ],
)
def test_what_is_refused(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("kernel", kernels.available())
@pytest.mark.parametrize("name", DECODERS)
def test_what_is_in_the_padding_of_a_memory_is_irrelevant(name: str, kernel: str) -> None:
    """NaN there is not read, and gets no gradient."""
    torch.manual_seed(0)
    decoder = DECODERS[name]()
    memory, x = torch.randn(5, 6, M), torch.randn(5, 4, D)
    clean = memory.clone().requires_grad_()
    dirty = memory.clone()
    for row, n in enumerate(LENGTHS.tolist()):
        dirty[row, n:] = torch.nan
    dirty.requires_grad_()
    found = []
    with kernels.use(kernel):
        for given in (clean, dirty):
            core = decoder.given(given, LENGTHS)
            y, last = core.scan(x)
            total = y.sum() + sum(leaf.abs().sum() for leaf in states.leaves(last))
            wanted = [given, *decoder.parameters()]
            found.append([y, *torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    for row, n in enumerate(LENGTHS.tolist()):
        assert not found[1][1][row, n:].any()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", DECODERS)
def test_a_memory_that_has_a_gradient_is_streamed(name: str, training: bool) -> None:
    """The encoder's graph hangs on it; the stream copies its numbers."""
    torch.manual_seed(0)
    decoder = DECODERS[name]().train(training)
    weight = torch.randn(M, M, requires_grad=True)
    memory = torch.randn(5, 6, M) @ weight
    core, x = decoder.given(memory, LENGTHS), torch.randn(5, 3, D)
    wanted = core.scan(x)[0].detach()
    stream = Stream(core, 5)
    with torch.no_grad():
        memory.zero_()  # later changes do not reach it
    for t in range(3):
        torch.testing.assert_close(stream.step(x[:, t]), wanted[:, t], rtol=1e-5, atol=1e-6)


def test_a_step_refuses_rows_that_the_memory_does_not_have() -> None:
    core = bound("dot")
    with pytest.raises(InputError, match="each row needs its own memory"):
        core.step(torch.zeros(1, D), core.init_state(1))
