"""What holds of every registered cell beside the laws."""

from __future__ import annotations

import pytest
import torch

from elman import state as states
from elman.cells import CELLS, cell
from elman.errors import InputError, UnknownNameError

VARIANTS = [(name, options) for name, kind in CELLS.items() for options in kind.variants]
IDS = ["-".join([name, *(f"{k}={v}" for k, v in options.items())]) for name, options in VARIANTS]
each_variant = pytest.mark.parametrize(("name", "options"), VARIANTS, ids=IDS)


@each_variant
def test_gradcheck_of_step(name, options):
    torch.manual_seed(0)
    core = cell(name, 3, 3, **options).double()
    like = states.map(torch.randn_like, core.init_state(2))
    leaves = [leaf.requires_grad_() for leaf in states.leaves(like)]
    parameters = dict(core.named_parameters())

    def step(x, *rest):
        given = iter(rest[: len(leaves)])
        weights = {f"core.{n}": w for n, w in zip(parameters, rest[len(leaves) :], strict=True)}
        y, after = torch.func.functional_call(Step(core), weights, (x, like, given))
        return (y, *states.leaves(after))

    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    inputs = (x, *leaves, *(p.detach().clone().requires_grad_() for p in parameters.values()))
    assert torch.autograd.gradcheck(step, inputs, fast_mode=True)


class Step(torch.nn.Module):
    """functional_call calls forward: here it is step, on a state of the structure of `like` with the leaves `given`."""

    def __init__(self, core):
        super().__init__()
        self.core = core

    def forward(self, x, like, given):
        return self.core.step(x, states.map(lambda _: next(given), like))


@each_variant
def test_narrow_activations_beside_wide_parameters(name, options):
    """bfloat16 in, bfloat16 out; in between it is the float32 computation, so only the output is rounded."""
    torch.manual_seed(0)
    core = cell(name, 3, 3, **options)
    x = torch.randn(2, 5, 3).bfloat16()
    lengths = torch.tensor([5, 3])
    y, state = core.scan(x, lengths=lengths)
    wide, wide_state = core.scan(x.float(), lengths=lengths)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, wide.bfloat16(), rtol=0, atol=0)
    for a, b in zip(states.leaves(state), states.leaves(wide_state), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    stepped, after = core.step(x[:, 0], core.init_state(2))
    assert stepped.dtype == torch.bfloat16
    assert [a.dtype for a in states.leaves(after)] == [b.dtype for b in states.leaves(wide_state)]


@pytest.mark.parametrize("name", CELLS)
def test_parameters_can_be_reset_and_are_finite(name):
    torch.manual_seed(0)
    core = cell(name, 3, 3)  # the HMM takes as many inputs as it has states
    before = {n: p.detach().clone() for n, p in core.named_parameters()}
    torch.manual_seed(0)
    with torch.no_grad():
        for p in core.parameters():
            p.fill_(float("nan"))
    core.reset_parameters()
    for n, p in core.named_parameters():
        torch.testing.assert_close(p.detach(), before[n], rtol=0, atol=0)


def test_cell_builds_what_it_is_asked_for():
    core = cell("lstm", 3, 8, projection=4)
    assert isinstance(core, CELLS["lstm"]) and (core.input_size, core.output_size) == (3, 4)


def test_an_unknown_cell_names_the_nearest():
    with pytest.raises(UnknownNameError, match=r"unknown cell 'lsmt'; there are .*elman.* Did you mean 'lstm'\?"):
        cell("lsmt", 3, 4)


def test_an_unknown_option_names_the_valid_ones():
    with pytest.raises(InputError, match="elman has no option 'peephole'; it has phi"):
        cell("elman", 3, 4, peephole=True)
    with pytest.raises(InputError, match="mgu has no option 'phi'; it has none"):
        cell("mgu", 3, 4, phi="tanh")


DECAYED = {
    "elman": "W U", "indrnn": "W", "jordan": "R U V", "deep_transition": "W U", "window": "W", "rate": "W B",
    "lstm": "W U P", "gru": "W U", "mgu": "W U", "mingru": "U", "minlstm": "U", "lru": "B C", "s4d": "U C",
    "s5": "B C", "mamba": "U w S W V", "hmm": "",
    "mamba2": "U w O",
    "mamba3": "U O",
    "retnet": "U O",
    "gla": "U W_1 W_2 O",
    "hgrn2": "U O",
    "deltanet": "U w O",
    "gated_deltanet": "U w O",
    "kda": "U w W_1 W_2 Z_1 Z_2 O",
    "rwkv7": "W_r W_k W_v D_1 D_2 A_1 A_2 G_1 G_2 O",
    "mlstm": "U W O",
    "slstm": "U R",
    "rglru": "U w W_a W_x O",
}  # fmt: skip


@pytest.mark.parametrize("name", CELLS)
def test_weight_decay_acts_on_matrices_that_mix(name):
    """Not on poles, skips, peepholes, biases or probabilities, which zero would not simplify; nor on any vector."""
    matrices = set()
    for options in CELLS[name].variants:
        for size in (3, 4) if name != "hmm" else (3,):
            matrices |= {n for n, p in cell(name, 3, size, **options).named_parameters() if p.dim() > 1}
    no_weight_decay = CELLS[name].no_weight_decay
    assert set(no_weight_decay) <= matrices
    assert matrices - set(no_weight_decay) == set(DECAYED[name].split())
