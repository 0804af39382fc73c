"""Each word against its meaning spelled out by hand: one row, one time step, one episode at a time."""

from __future__ import annotations

import doctest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from elman import kernels, laws
from elman import state as states
from elman.cells import cell
from elman.compose import (
    ACTIVATIONS,
    Bidirectional,
    Dense,
    Dropout,
    Norm,
    Parallel,
    Recompute,
    Residual,
    Reverse,
    Stack,
    WeightDrop,
    Zoneout,
    stack,
)
from elman.core import Core
from elman.errors import ElmanError, InputError

B, T, D, H = 5, 7, 3, 4
LENGTHS = torch.tensor([7, 0, 3, 1, 6])
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


class Sum(Core):
    """state = state' + x, from 1 and not from 0, so that what a reset goes back to can be told from zeros."""

    output_is_state = True

    def init_state(self, batch_size: int) -> Tensor:
        return torch.ones(batch_size, self.output_size)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return (x + state).to(x.dtype), x + state


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on tensors this small a second thread only waits
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(torch.float32)


def data() -> tuple[Tensor, Tensor]:
    """x with NaN in the padding, and resets at the start, in the middle, at the end and in the padding."""
    x = torch.randn(B, T, D)
    x[torch.arange(T) >= LENGTHS[:, None]] = torch.nan
    reset = torch.rand(B, T) < 0.3
    reset[0, [0, 3, 6]] = True
    reset[2, 2:4] = True
    return x, reset


def random_state(core: Core, rows: int = B) -> Any:
    return states.map(torch.randn_like, core.init_state(rows))


def by_hand(core: Core, x: Tensor, state: Any, reset: Tensor, backwards: bool = False) -> tuple[Tensor, Any]:
    """The protocol, row by row; backwards, the first input that is read of an episode is its last."""
    y = torch.zeros(B, T, core.output_size)
    last = []
    for row, n in enumerate(LENGTHS.tolist()):
        here = states.take(state, [row])
        for t in reversed(range(n)) if backwards else range(n):
            if (t + 1 < n and reset[row, t + 1]) if backwards else reset[row, t]:
                here = core.init_state(1)
            out, here = core.step(x[row : row + 1, t], here)
            y[row, t] = out[0]
        last.append(here)
    return y, states.concat(last)


def assert_same(one: tuple[Tensor, Any], two: tuple[Tensor, Any]) -> None:
    torch.testing.assert_close(one[0], two[0], **CLOSE)
    for a, b in zip(states.leaves(one[1]), states.leaves(two[1]), strict=True):
        torch.testing.assert_close(a, b, **CLOSE)


CAUSAL: dict[str, Callable[[], Core]] = {
    "stack": lambda: Stack(cell("elman", D, H), cell("gru", H, 2), Dense(2, 6)),
    "all inputs": lambda: Stack(cell("elman", D, H), cell("lstm", H + D, 2), Sum(2 + D, 2 + D), inputs="all"),
    "nested": lambda: Stack(
        Stack(cell("lstm", D, H), Residual(Parallel(cell("gru", H, 1), cell("elman", H, 3)))), Norm(H)
    ),
    "residual": lambda: Residual(cell("elman", D, D)),
    "parallel": lambda: Parallel(cell("elman", D, H), Sum(D, D), Dense(D, 2, activation="silu")),
    "dropout": lambda: Dropout(cell("elman", D, H), 0.5).eval(),
    "zoneout": lambda: Zoneout(cell("lstm", D, H), 0.3).eval(),
    "weight drop": lambda: WeightDrop(cell("elman", D, H), 0.5).eval(),
    "layer norm": lambda: Norm(D),
    "rms norm": lambda: Norm(D, kind="rms"),
    "linear": lambda: Residual(Stack(Norm(D), cell("lru", D, H), Dense(H, D, activation="silu"))),
    "recompute": lambda: Recompute(Stack(cell("gru", D, H), WeightDrop(cell("lstm", H, 2), 0.5), Sum(2, 2))).eval(),
    "convenience": lambda: stack("gru", D, H, layers=3, residual=True, norm="rms", dropout=0.5).eval(),
}
FROM_BOTH_SIDES: dict[str, Callable[[], Core]] = {
    "reverse": lambda: Reverse(cell("elman", D, H)),
    "forth and back": lambda: Stack(Reverse(cell("mingru", D, H)), Residual(Zoneout(cell("gru", H, H), 0.2).eval())),
    "bidirectional": lambda: Bidirectional(Sum(D, D), cell("gru", D, H)),
    "deep": lambda: stack("lstm", D, H, layers=2, bidirectional=True, residual=True, norm="layer", dropout=0.5).eval(),
}
WORDS = CAUSAL | FROM_BOTH_SIDES


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kernel", kernels.available())
@pytest.mark.parametrize("name", WORDS)
def test_words_keep_the_laws(name: str, kernel: str, dtype: torch.dtype) -> None:
    torch.set_default_dtype(dtype)
    with kernels.use(kernel):
        report = laws.check(WORDS[name](), batch_size=4, time=6)
    assert all(verdict.ok for verdict in report.verdicts), str(report)


@pytest.mark.parametrize("name", CAUSAL)
def test_scan_is_the_protocol_by_hand(name: str) -> None:
    core = CAUSAL[name]()
    for parameter in core.parameters():  # biases start at zero, and would hide in the padding
        parameter.data += 0.1 * torch.randn_like(parameter)
    x, reset = data()
    state = random_state(core)
    assert core.causal
    assert_same(core.scan(x, state, lengths=LENGTHS, reset=reset), by_hand(core, x, state, reset))


@pytest.mark.parametrize("name", WORDS)
def test_nothing_in_the_padding_reaches_a_gradient(name: str) -> None:
    core = WORDS[name]()
    x, reset = data()
    y, state = core.scan(x.requires_grad_(), random_state(core), lengths=LENGTHS, reset=reset)
    (y.sum() + sum(leaf.abs().sum() for leaf in states.leaves(state))).backward()
    for grad in [x.grad, *(p.grad for p in core.parameters())]:
        assert grad is not None and grad.isfinite().all()


@pytest.mark.parametrize("rows, times", [(0, T), (B, 0), (0, 0)])
@pytest.mark.parametrize("name", WORDS)
def test_empty_batches_and_sequences(name: str, rows: int, times: int) -> None:
    core = WORDS[name]()
    state = random_state(core, rows)
    y, after = core.scan(torch.randn(rows, times, D), state)
    assert y.shape == (rows, times, core.output_size)
    assert_same((y, after), (y, state))


@pytest.mark.skipif("native" not in kernels.available(), reason="bit for bit is the native kernels' promise")
@pytest.mark.parametrize("name", CAUSAL)
def test_chunks_and_batches_agree_bit_for_bit(name: str) -> None:
    torch.set_default_dtype(torch.float32)
    core = CAUSAL[name]()
    x, state = torch.randn(6, 9, D), random_state(core, 6)
    with torch.no_grad():
        whole, last = core.scan(x, state)
        parts, carried = [], state
        for chunk in x.split([1, 2, 5, 1], 1):
            y, carried = core.scan(chunk, carried)
            parts.append(y)
        alone = [core.scan(x[row : row + 1], states.take(state, [row])) for row in range(6)]
    for y, after in (
        (torch.cat(parts, 1), carried),
        (torch.cat([y for y, _ in alone]), states.concat([s for _, s in alone])),
    ):
        assert torch.equal(y, whole)
        assert all(torch.equal(a, b) for a, b in zip(states.leaves(after), states.leaves(last), strict=True))


def test_stack_says_which_layer_does_not_fit() -> None:
    with pytest.raises(InputError, match=r"layer 1 .*Dense\(5, 2\), reads 5 features, .* has 4: .*input_size=4"):
        Stack(Dense(3, 4), Dense(5, 2), Dense(2, 2))
    with pytest.raises(InputError, match=r"layer 2 .* has 5"):
        Stack(Dense(3, 4), Dense(7, 2), Dense(2, 2), inputs="all")
    with pytest.raises(InputError, match="inputs is 'some'; it must be one of 'previous', 'all'"):
        Stack(Dense(3, 4), inputs="some")


def test_stack_of_all_inputs_puts_the_input_behind_the_output_below() -> None:
    first, second, third = cell("elman", D, H), cell("gru", H + D, 2), Dense(2 + D, 1)
    x = torch.randn(B, T, D)
    y = second.scan(torch.cat([first.scan(x)[0], x], -1))[0]
    wanted = third.scan(torch.cat([y, x], -1))[0]
    torch.testing.assert_close(Stack(first, second, third, inputs="all").scan(x)[0], wanted, **CLOSE)


@pytest.mark.parametrize("word", [Stack, Parallel])
def test_words_want_cores(word: Any) -> None:
    with pytest.raises(InputError, match="given no core"):
        word()
    with pytest.raises(InputError, match=r"argument 1 .* is a Linear"):
        word(Dense(3, 3), torch.nn.Linear(3, 3))


def test_sizes_that_cannot_be_added_or_shared() -> None:
    with pytest.raises(InputError, match=r"reads 3 features and outputs 4"):
        Residual(Dense(3, 4))
    with pytest.raises(InputError, match=r"part 1 .* reads 4 features, part 0 reads 3"):
        Parallel(Dense(3, 4), Dense(4, 4))


# Reverse


@pytest.mark.parametrize("build", [lambda: Sum(D, D), lambda: cell("lstm", D, H)])
def test_reverse_reads_each_episode_from_its_end(build: Callable[[], Core]) -> None:
    core = build()
    x, reset = data()
    state = random_state(core)
    ours = Reverse(core).scan(x, state, lengths=LENGTHS, reset=reset)
    assert_same(ours, by_hand(core, x, state, reset, backwards=True))


@pytest.mark.parametrize("mutant", [lambda x, lengths: x, lambda x, lengths: x.flip(1)])
def test_a_reversal_that_does_not_reverse_each_row_is_seen(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "reverse", mutant)
    with pytest.raises(AssertionError):
        test_reverse_reads_each_episode_from_its_end(lambda: Sum(D, D))


def test_reverse_has_no_step_and_says_so() -> None:
    core = Reverse(Sum(D, D))
    with pytest.raises(InputError, match="no step: scan whole sequences"):
        core.step(torch.zeros(1, D), core.init_state(1))


def test_what_holds_a_reverse_is_not_causal() -> None:
    for core in (Reverse(Sum(D, D)), Residual(Reverse(Sum(D, D))), Stack(Sum(D, D), Reverse(Sum(D, D)))):
        assert not core.causal
        assert not Dropout(core, 0.5).causal
    with pytest.raises(InputError, match=r"Reverse\(Zoneout\(core\)\)"):
        Zoneout(Reverse(Sum(D, D)), 0.1)


def test_twice_reversed_is_the_core() -> None:
    core = cell("gru", D, H)
    x, _ = data()
    state = random_state(core)
    assert_same(Reverse(Reverse(core)).scan(x, state, lengths=LENGTHS), core.scan(x, state, lengths=LENGTHS))


def test_bidirectional_is_both_directions_side_by_side() -> None:
    left, right = cell("gru", D, H), cell("lstm", D, 2)
    x, reset = data()
    state = (random_state(left), random_state(right))
    y, after = Bidirectional(left, right).scan(x, state, lengths=LENGTHS, reset=reset)
    assert_same((y[..., :H], after[0]), by_hand(left, x, state[0], reset))
    assert_same((y[..., H:], after[1]), by_hand(right, x, state[1], reset, backwards=True))


# Pointwise words


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_dense(activation: str) -> None:
    core = Dense(D, H, activation=activation)
    torch.nn.init.normal_(core.b)
    x = torch.randn(B, T, D)
    y = x @ core.U.T + core.b
    wanted = {
        "none": y,
        "relu": y.clamp(min=0),
        "sigmoid": 1 / (1 + torch.exp(-y)),
        "silu": y / (1 + torch.exp(-y)),
        "softplus": torch.log1p(torch.exp(y)),
        "tanh": (torch.exp(2 * y) - 1) / (torch.exp(2 * y) + 1),
    }
    torch.testing.assert_close(core.scan(x)[0], wanted[activation], **CLOSE)


def test_norms() -> None:
    x = torch.randn(B, T, D) * 5 + 2
    layer, rms = Norm(D), Norm(D, kind="rms")
    for parameter in (*layer.parameters(), *rms.parameters()):
        torch.nn.init.normal_(parameter)
    centred = x - x.mean(-1, keepdim=True)
    wanted = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * layer.g + layer.b
    torch.testing.assert_close(layer.scan(x)[0], wanted, **CLOSE)
    torch.testing.assert_close(rms.scan(x)[0], x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * rms.g, **CLOSE)


@pytest.mark.parametrize("name", WORDS)
def test_narrow_activations_stay_narrow_and_states_wide(name: str) -> None:
    torch.set_default_dtype(torch.float32)
    core = WORDS[name]()
    y, state = core.scan(torch.randn(B, T, D, dtype=torch.bfloat16))
    assert y.dtype == torch.bfloat16
    assert all(leaf.dtype in (torch.float32, torch.complex64) for leaf in states.leaves(state))


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("size", [1, 7, 37, 256])
def test_a_norm_does_not_see_its_neighbours(kind: str, size: int) -> None:
    core = Norm(size, kind=kind).float()
    x = torch.randn(9, 11, size, dtype=torch.float32)
    alone = [torch.cat([core.scan(x[b : b + 1, t : t + 1])[0] for t in range(11)], 1) for b in range(9)]
    assert torch.equal(core.scan(x)[0], torch.cat(alone))
    assert torch.equal(core.scan(x[:, 3:8])[0], torch.cat(alone)[:, 3:8])


def test_names_that_do_not_exist() -> None:
    with pytest.raises(ElmanError, match=r"unknown activation 'Tanh'.* Did you mean 'tanh'"):
        Dense(D, H, activation="Tanh")
    with pytest.raises(ElmanError, match="unknown norm 'batch'; there are layer, rms"):
        Norm(D, kind="batch")


# Dropout


@pytest.mark.parametrize("p", [-0.1, 1, 1.5, float("nan"), "half", True])
def test_probabilities_are_checked(p: Any) -> None:
    builds: list[Callable[[], Core]] = [
        lambda: Dropout(Sum(D, D), p),
        lambda: Zoneout(Sum(D, D), p),
        lambda: WeightDrop(Dense(D, D), p, names=("U",)),
        lambda: stack("elman", D, H, dropout=p),
    ]
    for build in builds:
        with pytest.raises(InputError, match="at least 0 and below 1"):
            build()


@pytest.mark.parametrize("per", ["element", "row"])
def test_dropout_zeroes_a_share_and_scales_the_rest(per: str) -> None:
    core = Dropout(Dense(D, 500), 0.3, per=per)
    x = torch.randn(40, 6, D)
    y = core.scan(x)[0]
    dropped = y == 0
    torch.testing.assert_close(y[~dropped], core.core.scan(x)[0][~dropped] / 0.7, **CLOSE)
    # 20 000 draws or more of probability 0.3: the standard deviation of the share is 0.0033 or less.
    assert abs(dropped.double().mean() - 0.3) < 0.015
    constant_over_time = bool((dropped == dropped[:, :1]).all())
    assert constant_over_time == (per == "row")
    assert not (dropped[:1] == dropped).all()  # rows have masks of their own
    assert not torch.equal(core.scan(x)[0] == 0, dropped)  # and so has each scan


def test_dropout_leaves_the_recurrence_alone() -> None:
    core = Dropout(cell("gru", D, H), 0.9)
    x = torch.randn(B, T, D)
    assert torch.equal(core.scan(x)[1].h, core.core.scan(x)[1].h)
    assert (core.step(x[:, 0], core.init_state(B))[0] == 0).any()


def test_dropout_knows_its_words() -> None:
    with pytest.raises(InputError, match=r"per is .*; it must be one of 'element', 'row'"):
        Dropout(Sum(D, D), 0.5, per="batch")


@pytest.mark.parametrize(
    "wrap", [lambda c: Dropout(c, 0.7), lambda c: Dropout(c, 0.7, per="row"), lambda c: WeightDrop(c, 0.7)]
)
def test_dropping_is_nothing_in_evaluation(wrap: Callable[[Core], Core]) -> None:
    core = cell("lstm", D, H)
    x, reset = data()
    state = random_state(core)
    one, two = (c.scan(x, state, lengths=LENGTHS, reset=reset) for c in (core, wrap(core).eval()))
    assert torch.equal(one[0], two[0]) and torch.equal(one[1].h, two[1].h) and torch.equal(one[1].c, two[1].c)


# Zoneout


def test_zoneout_keeps_each_unit_or_lets_it_go() -> None:
    core = Zoneout(Sum(200, 200), 0.25)
    x = torch.rand(30, T, 200) + 1
    y, last = core.scan(x, torch.zeros(30, 200))
    moved = torch.diff(y, dim=1, prepend=torch.zeros(30, 1, 200))
    kept = moved == 0
    torch.testing.assert_close(moved[~kept], x[~kept], **CLOSE)
    # 42 000 draws: the standard deviation of the share is 0.002.
    assert abs(kept.double().mean() - 0.25) < 0.01
    assert torch.equal(y[:, -1], last)
    assert not torch.equal(kept[:, 0], kept[:, 1])


def test_zoneout_in_evaluation_is_the_mean_over_masks() -> None:
    core = Zoneout(cell("lstm", D, H), 0.25)
    x, state = torch.randn(1, D), random_state(core, 1)
    draws = 40_000
    y, after = core.step(x.expand(draws, D), states.repeat(state, draws))
    mean_y, mean = core.eval().step(x, state)
    # The mean over the draws is off by about |old - new| * 0.43 / sqrt(draws) < 0.01.
    torch.testing.assert_close(y.mean(0), mean_y[0], rtol=0, atol=0.04)
    torch.testing.assert_close(after.c.mean(0), mean.c[0], rtol=0, atol=0.04)
    new = core.core.step(x, state)[1]
    torch.testing.assert_close(mean.h, 0.25 * state.h + 0.75 * new.h, **CLOSE)
    torch.testing.assert_close(mean.c, 0.25 * state.c + 0.75 * new.c, **CLOSE)
    assert (mean.h - new.h).abs().max() > 0.1 and (mean.c - new.c).abs().max() > 0.1  # so a test of the mean can fail


@pytest.mark.parametrize("training", [True, False])
def test_zoneout_of_zero_is_nothing(training: bool) -> None:
    core = Zoneout(cell("lstm", D, H), 0.0).train(training)
    x, reset = data()
    state = random_state(core)
    wanted = core.core.scan(x, state, lengths=LENGTHS, reset=reset)
    assert_same(core.scan(x, state, lengths=LENGTHS, reset=reset), wanted)


def test_zoneout_leaves_other_outputs_to_the_core() -> None:
    core = Zoneout(Dense(D, H), 0.5)
    x = torch.randn(B, T, D)
    torch.testing.assert_close(core.scan(x)[0], core.core.scan(x)[0], **CLOSE)


# WeightDrop


def test_weight_drop_runs_with_a_masked_matrix_and_keeps_the_parameter() -> None:
    core = WeightDrop(Dense(50, 40), 0.3, names=("U",))
    raw = core.core.U.detach().clone()
    seen = []
    for _ in range(20):
        used = core.scan(torch.eye(50)[None])[0][0].T  # the matrix that this scan ran with
        dropped = used == 0
        torch.testing.assert_close(used[~dropped], raw[~dropped] / 0.7, **CLOSE)
        seen.append(dropped)
    assert torch.equal(core.core.U, raw)
    # 40 000 draws: standard deviation 0.0023. Had the masks accumulated, about 0.88 would be dropped.
    assert abs(torch.stack(seen).double().mean() - 0.3) < 0.01
    assert not any(torch.equal(seen[0], other) for other in seen[1:])


def test_weight_drop_holds_one_mask_through_a_scan() -> None:
    core = WeightDrop(Dense(D, H), 0.5, names=("U",))
    y, _ = core.scan(torch.ones(B, T, D))
    assert torch.equal(y, y[:1, :1].expand_as(y))


def test_weight_drop_trains_the_parameter_itself() -> None:
    core = WeightDrop(cell("lstm", D, H), 0.5)
    raw = core.core.W
    core.scan(torch.randn(B, T, D))[0].sum().backward()
    assert core.core.W is raw and isinstance(raw, torch.nn.Parameter)
    assert raw.grad is not None and (raw.grad == 0).any() and (raw.grad != 0).any()
    assert [name for name, _ in core.named_parameters()] == [f"core.{name}" for name, _ in core.core.named_parameters()]


def test_weight_drop_reaches_into_words() -> None:
    core = WeightDrop(stack("elman", D, H, layers=2), 0.5, names=("cores.0.W", "cores.1.W"))
    x = torch.randn(B, T, D)
    assert not torch.equal(core.scan(x)[0], core.scan(x)[0])
    for part in core.core.cores:
        torch.nn.init.zeros_(part.W)
    assert torch.equal(core.scan(x)[0], core.scan(x)[0])  # the other parameters are not masked


def test_weight_drop_says_which_names_there_are() -> None:
    for names in (("W", "V"), "W", ()):
        with pytest.raises(InputError, match="W, U, b"):
            WeightDrop(cell("elman", D, H), 0.5, names=names)


def test_the_parameter_is_back_after_an_error() -> None:
    core = WeightDrop(cell("elman", D, H), 0.5)
    raw = core.core.W
    with pytest.raises((RuntimeError, ElmanError)):
        core.step(torch.randn(B, D + 1), core.init_state(B))
    assert core.core.W is raw


# The convenience


def words(core: Core) -> list[str]:
    return [type(module).__name__ for module in core.modules() if isinstance(module, Core)]


def test_stack_is_built_from_the_words() -> None:
    core = stack("lstm", D, H, layers=3, bidirectional=True, residual=True, norm="layer", dropout=0.2)
    both = ["Bidirectional", "LSTM", "Reverse", "LSTM"]
    assert words(core) == [
        *("Stack", "Dropout", "Stack", "Norm", *both),
        *("Residual", "Dropout", "Stack", "Norm", *both),
        *("Residual", "Stack", "Norm", *both),
    ]
    assert (core.input_size, core.output_size) == (D, 2 * H)
    assert words(stack("elman", D, H)) == ["Stack", "Elman"]
    assert words(stack("elman", H, H, residual=True)) == ["Stack", "Residual", "Elman"]


def test_stack_gives_options_to_the_cells() -> None:
    core = stack("elman", D, H, layers=2, phi="relu")
    assert [part.phi for part in core.cores] == ["relu", "relu"]
    with pytest.raises(ElmanError, match="phi"):
        stack("elman", D, H, psi="relu")
    with pytest.raises(ElmanError, match="lstm"):
        stack("lstn", D, H)
    with pytest.raises(InputError, match="layers is 0"):
        stack("elman", D, H, layers=0)


def test_states_of_words_go_through_a_file(tmp_path: Path) -> None:
    core = stack("lstm", D, H, layers=2, bidirectional=True, norm="rms")
    _, state = core.scan(torch.randn(B, T, D))
    states.save(tmp_path / "state.safetensors", state)
    loaded = states.load(tmp_path / "state.safetensors", like=core.init_state(0))
    x = torch.randn(B, T, D)
    assert torch.equal(core.scan(x, loaded)[0], core.scan(x, state)[0])


@pytest.mark.parametrize("name", ["nested", "all inputs", "bidirectional"])
def test_gradients_are_the_finite_differences(name: str) -> None:
    core = WORDS[name]()
    x, reset = data()
    leaves = [leaf.requires_grad_() for leaf in states.leaves(random_state(core))]

    def outputs(x: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
        given = iter(leaves)
        y, last = core.scan(x, states.map(lambda _: next(given), core.init_state(B)), lengths=LENGTHS, reset=reset)
        return y, *states.leaves(last)

    assert torch.autograd.gradcheck(outputs, (x.nan_to_num().requires_grad_(), *leaves), fast_mode=True)


def test_the_page_on_composition_runs() -> None:
    torch.set_default_dtype(torch.float32)
    page = Path(__file__).parent.parent.parent / "docs" / "guides" / "composition.md"
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 10 and result.failed == 0


class Leaky(Core):
    """h = a h' + tanh(U x): a cell of one's own, in no registry."""

    def __init__(self, input_size: int, size: int, a: float = 0.9) -> None:
        super().__init__(input_size, size)
        self.a, self.U = a, nn.Parameter(torch.randn(size, input_size))

    def init_state(self, batch_size: int) -> Tensor:
        return self.zeros(batch_size, self.output_size)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        h = self.a * state + kernels.tanh(kernels.linear(x, self.U))
        return h, h


def test_stack_takes_a_class_of_ones_own() -> None:
    core = stack(Leaky, 3, 4, layers=2, bidirectional=True, a=0.5)
    assert core(torch.randn(2, 5, 3))[0].shape == (2, 5, 8)
    assert [module.a for module in core.modules() if isinstance(module, Leaky)] == [0.5] * 4
    with pytest.raises(InputError, match=r"Leaky has no option 'b'; it has a\."):
        stack(Leaky, 3, 4, b=1)
    with pytest.raises(InputError, match="must be a name in CELLS, or a class that derives from Core"):
        stack(nn.LSTM, 3, 4)


def test_a_misspelt_option_of_stack_is_named() -> None:
    with pytest.raises(InputError, match=r"lstm has no option 'bidirectionl'.* Did you mean 'bidirectional'\?"):
        stack("lstm", 4, 8, bidirectionl=True)
    with pytest.raises(ElmanError, match=r"unknown cell 'GRU'.* Did you mean 'gru'\?"):
        cell("GRU", 2, 3)
    with pytest.raises(InputError, match=r"Did you mean 'peephole'\?"):
        stack("lstm", 4, 8, peepholes=True)


def test_dropout_between_layers_of_which_there_is_one_is_said() -> None:
    with pytest.warns(UserWarning, match=r"dropout is 0\.5, between layers, and there is only one: it does nothing"):
        stack("gru", 3, 4, dropout=0.5)


def test_hooks_of_cores_inside_fire_and_change_nothing() -> None:
    torch.manual_seed(0)
    core = stack("gru", D, D, layers=2, bidirectional=False, residual=True, norm="rms", dropout=0.1).eval()
    core = Stack(core, WeightDrop(Bidirectional(cell("lstm", D, H), cell("elman", D, H)), 0.1, names=("cores.0.W",)))
    x, reset = torch.randn(B, T, D), torch.zeros(B, T, dtype=torch.bool)
    reset[0, 3] = True
    before = core.eval()(x, lengths=LENGTHS, reset=reset)
    fired: list[str] = []
    for name, part in core.named_modules():
        if isinstance(part, Core):
            part.register_forward_hook(lambda part, args, out, name=name: fired.append(name))
    after = core(x, lengths=LENGTHS, reset=reset)
    assert set(fired) == {name for name, part in core.named_modules() if isinstance(part, Core)}
    assert all(torch.equal(a, b) for a, b in zip(states.leaves(before), states.leaves(after), strict=True))


def test_a_hook_of_a_layer_may_replace_its_output() -> None:
    core = stack("gru", D, H, layers=2)
    core.cores[0].register_forward_hook(lambda part, args, out: (torch.zeros_like(out[0]), out[1]))
    x = torch.randn(B, T, D)
    assert torch.equal(core(x)[0], core.cores[1](torch.zeros(B, T, H))[0])


def test_a_stack_whose_later_layers_read_x_does_not_hand_them_its_padding() -> None:
    torch.manual_seed(0)
    core = Stack(cell("gru", 3, 4), Dense(4 + 3, 2), inputs="all")
    x = torch.randn(2, 5, 3)
    x[1, 2:] = torch.nan
    y, _ = core.scan(x, lengths=torch.tensor([5, 2]))
    y.sum().backward()
    assert y.isfinite().all() and all(p.grad is not None and p.grad.isfinite().all() for p in core.parameters())
