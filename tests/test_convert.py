"""PyTorch's own recurrent modules are the oracle: outputs, last states and every gradient, in float64 to 1e-10."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from elman import state as states
from elman.cells import cell
from elman.compose import Bidirectional, Dropout, Parallel, Residual, Reverse, Stack, stack
from elman.convert import from_torch, state_from_torch, state_to_torch, to_torch
from elman.core import Core
from elman.errors import InputError

B, T, D, H = 4, 6, 3, 5
CLOSE = {"rtol": 1e-10, "atol": 1e-10}
KINDS: dict[str, tuple[type[nn.RNNBase], dict[str, Any]]] = {
    "tanh": (nn.RNN, {}),
    "relu": (nn.RNN, {"nonlinearity": "relu"}),
    "gru": (nn.GRU, {}),
    "lstm": (nn.LSTM, {}),
    "projected": (nn.LSTM, {"proj_size": 2}),
}
FORMS = [
    pytest.param(
        kind, {"num_layers": layers, "bidirectional": bidirectional, "bias": bias}, id=f"{kind}-{layers}-{d}-{b}"
    )
    for kind, layers, (bidirectional, d), (bias, b) in itertools.product(
        KINDS, (1, 2, 3), ((False, "one way"), (True, "both ways")), ((True, "biased"), (False, "unbiased"))
    )
    if bias or layers == 2
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on tensors this small a second thread only waits
    yield
    torch.set_num_threads(threads)


def build(kind: str, **shape: Any) -> nn.RNNBase:
    torch.manual_seed(0)
    module, options = KINDS[kind]
    return module(D, H, batch_first=True, dtype=torch.float64, **options, **shape)


def carried(module: nn.RNNBase) -> list[Tensor]:
    """A PyTorch state of random values: [h], or [h, c]."""
    cells = module.num_layers * (2 if module.bidirectional else 1)
    h = torch.randn(cells, B, module.proj_size or H, dtype=torch.float64)
    return [h, torch.randn(cells, B, H, dtype=torch.float64)] if isinstance(module, nn.LSTM) else [h]


def as_torch(parts: list[Tensor]) -> Any:
    return tuple(parts) if len(parts) == 2 else parts[0]


def copies(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def total(y: Tensor, state: Any) -> Tensor:
    """A function of all outputs and last states whose gradient is different for each of them."""
    parts = [y, *states.leaves(state)]
    return sum(
        ((part * torch.arange(1.0, part.numel() + 1).reshape(part.shape).sin()).sum() for part in parts),
        torch.tensor(0.0),
    )


def assert_same_parameter_gradients(core: Stack, module: nn.RNNBase) -> None:
    """Every parameter of the module, with our b beside both of PyTorch's biases."""
    cells = [part for part in core.modules() if isinstance(part, Core) and hasattr(part, "W")]
    suffixes = [f"l{i}{d}" for i in range(module.num_layers) for d in ("", "_reverse")[: 1 + module.bidirectional]]
    compared = 0
    for ours, suffix in zip(cells, suffixes, strict=True):
        pairs = {f"weight_ih_{suffix}": ours.U.grad, f"weight_hh_{suffix}": ours.W.grad}
        if module.proj_size:
            pairs[f"weight_hr_{suffix}"] = ours.P.grad
        if module.bias:
            pairs[f"bias_ih_{suffix}"] = pairs[f"bias_hh_{suffix}"] = ours.b.grad
            if isinstance(module, nn.GRU):
                pairs[f"bias_hh_{suffix}"] = torch.cat([ours.b.grad[: 2 * H], ours.c.grad])
        for name, gradient in pairs.items():
            torch.testing.assert_close(gradient, module.get_parameter(name).grad, **CLOSE)
            compared += 1
    assert compared == len(list(module.parameters()))


@pytest.mark.parametrize("kind, shape", FORMS)
@pytest.mark.parametrize("ragged", [False, True], ids=["whole", "ragged"])
def test_outputs_states_and_all_gradients_are_those_of_pytorch(kind: str, shape: dict[str, Any], ragged: bool) -> None:
    module = build(kind, **shape)
    core = from_torch(module)
    x, start = torch.randn(B, T, D, dtype=torch.float64), carried(module)
    x1, *start1 = copies([x, *start])
    x2, *start2 = copies([x, *start])
    lengths = torch.tensor([2, 6, 1, 5]) if ragged else torch.full((B,), T)
    y1, last1 = core.scan(x1, state_from_torch(core, as_torch(start1)), lengths=lengths)
    if ragged:
        packed, last2 = module(
            pack_padded_sequence(x2, lengths, batch_first=True, enforce_sorted=False), as_torch(start2)
        )
        y2, _ = pad_packed_sequence(packed, batch_first=True)
    else:
        y2, last2 = module(x2, as_torch(start2))
    last1 = state_to_torch(core, last1)
    torch.testing.assert_close(y1, y2, **CLOSE)
    torch.testing.assert_close(last1, last2, **CLOSE)
    total(y1, last1).backward()
    total(y2, last2).backward()
    for ours, theirs in zip([x1, *start1], [x2, *start2], strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, **CLOSE)
    assert_same_parameter_gradients(core, module)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_without_inputs_keeps_its_state_and_the_others_are_as_in_pytorch(kind: str) -> None:
    module = build(kind, num_layers=2, bidirectional=True)
    core = from_torch(module)
    x, start = torch.randn(B, T, D, dtype=torch.float64), carried(module)
    lengths = torch.tensor([0, 6, 0, 3])
    y, last = core.scan(x, state_from_torch(core, as_torch(start)), lengths=lengths)
    assert (y[[0, 2]] == 0).all()
    rest = [1, 3]
    packed = pack_padded_sequence(x[rest], lengths[rest], batch_first=True)
    wanted, wanted_last = module(packed, as_torch([part[:, rest] for part in start]))
    torch.testing.assert_close(
        y[rest], pad_packed_sequence(packed._replace(data=wanted.data), batch_first=True)[0], **CLOSE
    )
    ours = states.leaves(state_to_torch(core, last))
    for part, before, after in zip(ours, start, states.leaves(wanted_last), strict=True):
        assert torch.equal(part[:, [0, 2]], before[:, [0, 2]])
        torch.testing.assert_close(part[:, rest], after, **CLOSE)


@pytest.mark.parametrize("kind, shape", FORMS)
def test_there_and_back_is_the_same_module(kind: str, shape: dict[str, Any]) -> None:
    module = build(kind, **shape, dropout=0.25 if shape["num_layers"] > 1 else 0.0).eval()
    back = to_torch(from_torch(module))
    assert repr(back) == repr(module) and back.training is False
    x, start = torch.randn(B, T, D, dtype=torch.float64), as_torch(carried(module))
    torch.testing.assert_close(back(x, start), module(x, start), **CLOSE)
    once_more = to_torch(from_torch(back))
    for (name, one), (other_name, two) in zip(back.named_parameters(), once_more.named_parameters(), strict=True):
        assert name == other_name and torch.equal(one, two)


def test_a_core_of_ours_becomes_a_module() -> None:
    for name, options in (("elman", {"phi": "relu"}), ("gru", {}), ("lstm", {"projection": 2})):
        core = stack(name, D, H, layers=2, bidirectional=True, **options)
        for b in (parameter for key, parameter in core.named_parameters() if key.endswith((".b", ".c"))):
            nn.init.normal_(b)
        x = torch.randn(B, T, D)
        torch.testing.assert_close(to_torch(core)(x)[0], core.scan(x)[0], rtol=1e-5, atol=1e-5)


def test_a_lone_cell_becomes_a_module_and_its_state_too() -> None:
    core = cell("lstm", D, H)
    y, last = core.scan(torch.ones(B, T, D))
    theirs, (h, c) = to_torch(core)(torch.ones(B, T, D))
    torch.testing.assert_close(y, theirs, rtol=1e-5, atol=1e-5)
    ours = state_to_torch(core, last)
    torch.testing.assert_close(ours, (h, c), rtol=1e-5, atol=1e-5)
    again = state_from_torch(core, ours)
    assert torch.equal(again.h, last.h) and torch.equal(again.c, last.c)


def test_dropout_stands_between_the_layers_only() -> None:
    core = from_torch(build("gru", num_layers=3, dropout=0.5))
    assert [part.p if isinstance(part, Dropout) else None for part in core.cores] == [0.5, 0.5, None]
    assert core.training and not from_torch(build("gru", num_layers=3, dropout=0.5).eval()).training


def test_dtype_training_and_time_first_modules() -> None:
    module = nn.LSTM(D, H, dtype=torch.float32)  # time first
    module.weight_hh_l0.requires_grad_(False)
    core = from_torch(module, time_first_ok=True)
    assert {parameter.dtype for parameter in core.parameters()} == {torch.float32}
    assert [name for name, parameter in core.named_parameters() if not parameter.requires_grad] == ["cores.0.W"]
    x = torch.randn(B, T, D)
    torch.testing.assert_close(core.scan(x)[0], module(x.transpose(0, 1))[0].transpose(0, 1), rtol=1e-5, atol=1e-5)
    back = to_torch(core)
    assert [name for name, parameter in back.named_parameters() if not parameter.requires_grad] == ["weight_hh_l0"]


def test_the_copy_is_a_copy() -> None:
    module = build("lstm")
    core = from_torch(module)
    before = core.cores[0].W.detach().clone()
    nn.init.zeros_(module.weight_hh_l0)
    assert torch.equal(core.cores[0].W, before)


@pytest.mark.parametrize("module", [nn.Linear(2, 2), nn.LSTMCell(2, 2), None])
def test_other_modules_are_refused(module: Any) -> None:
    with pytest.raises(InputError, match=r"nn\.RNN, nn\.GRU or nn\.LSTM"):
        from_torch(module)


@pytest.mark.parametrize(
    "core, why",
    [
        (cell("mgu", D, H), "a MGU"),
        (cell("gru", D, H, reset_after=False), "reset_after=False"),
        (cell("gru", D, H, layer_norm=True), "layer_norm"),
        (cell("lstm", D, H, peephole=True, coupled=True), "peephole and coupled"),
        (cell("lstm", D, H, candidate="logistic"), "candidate='logistic'"),
        (cell("lstm", D, H, projection=H), "a projection of 5"),
        (Residual(cell("gru", D, D)), "a Residual"),
        (Reverse(cell("gru", D, D)), "a Reverse"),
        (Parallel(cell("gru", D, D), cell("gru", D, D)), "a Parallel"),
        (Stack(cell("gru", D, H), cell("gru", H, D)), "layer 1 of another form"),
        (Stack(cell("gru", D, D), Bidirectional(cell("gru", D, D), cell("gru", D, D))), "layer 1 of another form"),
        (Stack(cell("elman", D, H), cell("elman", H, H, phi="relu")), "layer 1 of another form"),
        (Stack(cell("gru", D, H), cell("gru", H + D, H), inputs="all"), "all read the input"),
        (Stack(Dropout(cell("gru", D, H), 0.1), Dropout(cell("gru", H, H), 0.1)), "dropout of 0.1, 0.1"),
        (Stack(Dropout(cell("gru", D, H), 0.1, per="row"), cell("gru", H, H)), "dropout per row"),
        (stack("gru", D, H, norm="layer"), "a Stack"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_pytorch_cannot_express_is_refused(core: Core, why: str) -> None:
    with pytest.raises(InputError, match=f"{why}.*no module for"):
        to_torch(core)


@pytest.mark.parametrize("shape", [(2, B, H), (1, B, H + 1), (1, H)])
def test_states_that_do_not_fit(shape: tuple[int, ...]) -> None:
    core = from_torch(nn.GRU(D, H, batch_first=True))
    with pytest.raises(InputError, match=r"this core's is h of shapes \[1, .*unsqueeze\(1\)"):
        state_from_torch(core, torch.zeros(shape))
    with pytest.raises(InputError, match="this core's is h, c of shapes"):
        state_from_torch(from_torch(nn.LSTM(D, H, batch_first=True)), torch.zeros(1, B, H))
    with pytest.raises(InputError, match="structure"):
        state_to_torch(core, (torch.zeros(B, H),))


@pytest.mark.parametrize("kind", KINDS)
def test_a_module_that_reads_time_first_is_refused_with_the_two_ways_out(kind: str) -> None:
    module = build(kind)
    module.batch_first = False
    with pytest.raises(InputError, match=r"reads \(T, B, D\).*module\.batch_first = True.*time_first_ok=True"):
        from_torch(module)
    x = torch.randn(T, B, D, dtype=torch.float64)
    y, _ = from_torch(module, time_first_ok=True).scan(x.transpose(0, 1))
    torch.testing.assert_close(y.transpose(0, 1), module(x)[0], **CLOSE)
    module.batch_first = True
    torch.testing.assert_close(from_torch(module).scan(x)[0], module(x)[0], **CLOSE)


def _pruned(module: nn.LSTM) -> nn.Module:
    return prune.l1_unstructured(module, "weight_hh_l0", 0.5)


class Doubled(nn.LSTM):
    def forward(self, x: Tensor, *rest: Any) -> Any:
        return super().forward(2 * x, *rest)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_pruned, r"weight_hh_l0 of this nn\.LSTM is computed from other parameters.*prune\.remove"),
        (lambda m: nn.utils.weight_norm(m, "weight_hh_l0"), r"weight_hh_l0.*remove_weight_norm"),
        (lambda m: parametrizations.weight_norm(m, "weight_hh_l0"), r"is parametrized.*remove_parametrizations"),
        (lambda m: Doubled(3, 4, batch_first=True), r"a Doubled, a kind of nn\.LSTM that may compute something else"),
    ],
)
def test_a_module_that_does_not_compute_what_its_parameters_say_is_refused(change: Any, why: str) -> None:
    with pytest.raises(InputError, match=why):
        from_torch(change(nn.LSTM(3, 4, batch_first=True)))


def test_what_the_refusal_advises_helps() -> None:
    module = nn.LSTM(3, 4, batch_first=True)
    _pruned(module)
    prune.remove(module, "weight_hh_l0")
    x = torch.randn(2, 5, 3)
    torch.testing.assert_close(from_torch(module).scan(x)[0], module(x)[0])


def test_the_state_of_pytorch_is_refused_with_the_class_that_is_expected_and_the_way_there() -> None:
    core, carried = cell("lstm", D, H), (torch.zeros(1, B, H), torch.ones(1, B, H))
    wanted = (
        r"^the state .*\(float32\[1, 4, 5\], float32\[1, 4, 5\]\).* LSTMState.* elman\.state_from_torch\(core, state\)"
    )
    with pytest.raises(InputError, match=wanted):
        core(torch.zeros(B, T, D), carried)
    with pytest.raises(InputError, match=wanted):
        core.step(torch.zeros(B, D), carried)
    core(torch.zeros(B, T, D), state_from_torch(core, carried))
