import itertools

import pytest
import torch

from elman.cells import CELLS, cell
from elman.compose import Dense, blocks, stack
from elman.errors import FileError, InputError
from elman.nn.embed import Embedding
from elman.nn.readout import Softmax
from elman.training import optim
from elman.training.optim import OptimConfig, Schedule


def test_warm_up_then_cosine():
    schedule = Schedule(OptimConfig(lr=1.0, warmup=4, final_lr=0.1), steps=24)
    rates = [schedule.lr(step) for step in range(25)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == pytest.approx(1.0) and rates[14] == pytest.approx(0.55) and rates[24] == pytest.approx(0.1)
    assert all(a >= b for a, b in itertools.pairwise(rates[3:]))


def test_plateau_waits_and_then_shrinks():
    schedule = Schedule(OptimConfig(lr=1.0, warmup=0, schedule="plateau", patience=1, factor=0.1), steps=9)
    rates = []
    for improved in (True, False, False, False, False, True):
        schedule.observe(improved)
        rates.append(schedule.lr(5))
    assert rates == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


def gradients(*values):
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in values]
    for parameter, value in zip(parameters, values, strict=True):
        parameter.grad = torch.tensor([float(value)])
    return parameters


def test_clipping_by_norm_and_by_element():
    parameters = gradients(3, 4)
    assert optim.clip(OptimConfig(clip_norm=1.0), parameters) == pytest.approx(5)
    torch.testing.assert_close(torch.cat([p.grad for p in parameters]), torch.tensor([0.6, 0.8]), atol=1e-5, rtol=0)
    parameters = gradients(3, -4)
    assert optim.clip(OptimConfig(clip_norm=0, clip_value=3.5), parameters) == pytest.approx(5)
    assert [float(p.grad) for p in parameters] == [3.0, -3.5]


def test_sgd_has_its_momentum():
    model = Two("a")
    optimiser = optim.optimiser(OptimConfig(name="sgd", lr=0.1, momentum=0.5, weight_decay=0.0), model)
    p, v = 1.0, 0.0
    for _ in range(3):
        optimiser.zero_grad()
        (model.a**2).sum().backward()
        optimiser.step()
        v = 0.5 * v + 2 * p
        p -= 0.1 * v
        torch.testing.assert_close(model.a.detach(), torch.full((2, 2), p))


@pytest.mark.parametrize("name", optim.OPTIMISERS)
def test_an_optimiser_goes_on_as_if_nothing_had_happened(name):
    def start():
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        return model, optim.optimiser(OptimConfig(name=name, lr=0.1), model)

    def step(model, optimiser, k):
        optimiser.zero_grad()
        (model(torch.full((1, 3), float(k))) ** 2).sum().backward()
        optimiser.step()

    model, optimiser = start()
    for k in range(3):
        step(model, optimiser, k)
    other, resumed = start()
    other.load_state_dict(model.state_dict())
    optim.restore(resumed, {name: value.clone() for name, value in optim.tensors(optimiser).items()})
    for k in range(3):
        step(model, optimiser, k)
        step(other, resumed, k)
    assert torch.equal(other.weight, model.weight)


class Two(torch.nn.Module):
    """Two matrices of one shape, which stand in either order: what is stored by place would be swapped in silence."""

    def __init__(self, *names):
        super().__init__()
        for name in names:
            setattr(self, name, torch.nn.Parameter(torch.ones(2, 2)))


@pytest.mark.parametrize("name", optim.OPTIMISERS)
def test_what_is_remembered_is_found_by_name_in_any_order(name):
    one, other = Two("a", "b"), Two("b", "a")
    first, second = (optim.optimiser(OptimConfig(name=name, lr=0.1), model) for model in (one, other))

    def step(model, optimiser):
        optimiser.zero_grad()
        (3 * model.a**2 + model.b.exp()).sum().backward()
        optimiser.step()

    for _ in range(3):
        step(one, first)
    other.load_state_dict(one.state_dict())
    optim.restore(second, {key: value.clone() for key, value in optim.tensors(first).items()})
    for _ in range(2):
        step(one, first)
        step(other, second)
    assert not torch.equal(one.a, one.b)
    assert torch.equal(other.a, one.a) and torch.equal(other.b, one.b)


def test_the_state_is_stored_by_name():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    optimiser = optim.optimiser(OptimConfig(), model)
    assert optim.tensors(optimiser) == {}
    model(torch.ones(1, 3)).sum().backward()
    optimiser.step()
    parts = ("step", "exp_avg", "exp_avg_sq")
    assert set(optim.tensors(optimiser)) == {f"0.{name}/{part}" for name in ("weight", "bias") for part in parts}


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({"c/exp_avg": torch.zeros(2, 2)}, "a parameter 'c' that this model does not have"),
        ({"0.exp_avg": torch.zeros(2, 2)}, "a parameter '0.exp_avg' .* numbered parameters"),
        ({"a/exp_avg": torch.zeros(3, 2)}, r"'a/exp_avg' has the shape \[3, 2\], the parameter \[2, 2\]"),
    ],
)
def test_the_state_of_another_model_is_refused(stored, message):
    with pytest.raises(FileError, match=message):
        optim.restore(optim.optimiser(OptimConfig(), Two("a", "b")), stored)


def test_adagrad_divides_by_the_root_of_the_sum_of_squares():
    """Duchi et al. (2011), figure 1: p = p - lr g / (delta + sqrt(sum of g g))."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2, bias=False).double()
    expected, total = model.weight.detach().clone(), torch.zeros(2, 3, dtype=torch.float64)
    optimiser = optim.optimiser(OptimConfig(name="adagrad", lr=0.1, weight_decay=0.0), model)
    for _ in range(4):
        gradient = torch.randn(2, 3, dtype=torch.float64)
        model.weight.grad = gradient.clone()
        optimiser.step()
        total += gradient**2
        expected -= 0.1 * gradient / (total.sqrt() + 1e-10)
    torch.testing.assert_close(model.weight.detach(), expected, rtol=1e-12, atol=0)


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = Embedding(5, 3)
        self.readout = Softmax(3, 5, weight=self.embed.weight)
        self.other = torch.nn.Embedding(4, 2)
        self.dense = torch.nn.Linear(3, 3)


def test_what_each_parameter_of_a_model_is():
    assert optim.kinds(Tied()) == {
        "embed.weight": "embedding", "readout.linear.bias": "kept", "other.weight": "embedding",
        "dense.weight": "decayed", "dense.bias": "kept",
    }  # fmt: skip
    untied = torch.nn.ModuleList([Embedding(5, 3), Softmax(3, 5)])
    assert optim.kinds(untied)["1.linear.weight"] == "decayed"
    backwards = Tied()
    backwards._modules = dict(reversed(backwards._modules.items()))  # whichever of the two modules comes first
    assert optim.kinds(backwards)["readout.linear.weight"] == "embedding"


def test_a_frozen_parameter_is_not_optimised():
    model = torch.nn.Linear(3, 2)
    model.weight.requires_grad_(False)
    assert list(optim.kinds(model)) == ["bias"]


@pytest.mark.parametrize("name", optim.OPTIMISERS)
def test_embeddings_have_a_learning_rate_of_their_own_and_do_not_decay(name):
    """With equal gradients everywhere the first step is the learning rate; without any, what moves decays."""

    def moved(gradient, factor, decay):
        torch.manual_seed(0)
        model = Tied()
        optimiser = optim.optimiser(OptimConfig(name=name, lr=1.0, embedding_lr=factor, weight_decay=decay), model)
        optim.set_lr(optimiser, 0.1)
        before = {key: p.detach().clone() for key, p in model.named_parameters()}
        for p in model.parameters():
            p.grad = torch.full_like(p, gradient)
        optimiser.step()
        return {key: before[key] - p.detach() for key, p in model.named_parameters()}

    for key, change in moved(1.0, 0.25, 0.0).items():
        rate = 0.025 if key in ("embed.weight", "other.weight") else 0.1
        torch.testing.assert_close(change, torch.full_like(change, rate), msg=lambda text, key=key: f"{key}: {text}")
    assert {key for key, change in moved(0.0, 1.0, 0.5).items() if change.any()} == {"dense.weight"}


@pytest.mark.parametrize("name", optim.OPTIMISERS)
def test_poles_have_a_learning_rate_of_their_own_and_do_not_decay(name):
    """As above, of a linear recurrence in its block."""

    def moved(gradient, factor, decay):
        model = blocks("lru", 3, 4)
        optimiser = optim.optimiser(OptimConfig(name=name, lr=1.0, pole_lr=factor, weight_decay=decay), model)
        optim.set_lr(optimiser, 0.1)
        before = {key: p.detach().clone() for key, p in model.named_parameters()}
        for p in model.parameters():
            p.grad = torch.full_like(p, gradient)
        optimiser.step()
        return {key: before[key] - p.detach() for key, p in model.named_parameters()}

    for key, change in moved(1.0, 0.25, 0.0).items():
        rate = 0.025 if key.split(".")[-1] in ("nu", "theta") else 0.1
        torch.testing.assert_close(change, torch.full_like(change, rate), atol=1e-6, rtol=0)
    decayed = {key.split(".")[-1] for key, change in moved(0.0, 1.0, 0.5).items() if change.any()}
    assert decayed == {"B", "C", "U"}


@pytest.mark.parametrize("listed", ["no_weight_decay", "poles"])
def test_what_a_module_lists_must_be_its_parameters(listed):
    Mistyped = type("Mistyped", (torch.nn.Linear,), {listed: ("wieght",)})
    with pytest.raises(InputError, match=rf"Mistyped\.{listed} names 'wieght'"):
        optim.kinds(Mistyped(1, 1))


# Written from the equations, letter by letter. Decayed: dense maps of the input, of the state, and between the parts of
# a cell. Kept: biases, gains, peepholes, and what sets the time scales, phases, step sizes or skips of a recurrence.
# The one matrix of the HMM holds logarithms of probabilities.
DECAYED = {
    "elman": "W U",
    "indrnn": "W",
    "jordan": "R U V",
    "deep_transition": "W U",
    "window": "W",
    "rate": "W B",
    "lstm": "W U P",
    "gru": "W U",
    "mgu": "W U",
    "mingru": "U",
    "minlstm": "U",
    "lru": "B C",
    "s4d": "U C",
    "s5": "B C",
    "mamba": "U w S W V",
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
    "hmm": "",
}
KEPT = {
    "elman": "b",
    "indrnn": "u b",
    "jordan": "b c",
    "deep_transition": "b",
    "window": "b",
    "rate": "b",
    "lstm": "b p gain_W gain_U gain_c b_c",
    "gru": "b c gain_W gain_U",
    "mgu": "b",
    "mingru": "b",
    "minlstm": "b",
    "lru": "nu theta gamma_log D",
    "s4d": "log_dt A_log A_im D",
    "s5": "log_dt A_log A_im D",
    "mamba": "c b A_log D",
    "mamba2": "c b A_log D g",
    "mamba3": "b D g g_q c c_q",
    "retnet": "g",
    "gla": "b g",
    "hgrn2": "g",
    "deltanet": "g",
    "gated_deltanet": "A_log dt g",
    "kda": "A_log dt g",
    "rwkv7": "mu w_0 a_0 k_k k_a r_k g c",
    "mlstm": "b g",
    "slstm": "b g",
    "rglru": "b c b_a b_x L o",
    "hmm": "log_pi log_P",
}
# Of those, what a state is multiplied by at every step, whatever is read.
POLES = {"lru": "nu theta", "s4d": "log_dt A_log A_im", "s5": "log_dt A_log A_im"}


@pytest.mark.parametrize("name", CELLS)
def test_what_decays_in_every_cell_with_every_option(name):
    seen = set()
    for options in CELLS[name].variants:
        for input_size in (4,) if name == "hmm" else (3, 4):  # a map of the input may be left out where sizes agree
            for parameter, kind in optim.kinds(cell(name, input_size, 4, **options)).items():
                pole = parameter in POLES.get(name, "").split()
                kept = "pole" if pole else "kept"
                assert kind == ("decayed" if parameter in DECAYED[name].split() else kept), parameter
                seen.add(parameter)
    assert seen == {*DECAYED[name].split(), *KEPT[name].split()}


def test_norms_and_biases_of_the_words_do_not_decay():
    core = stack("gru", 3, 3, layers=2, norm="layer", dropout=0.1, residual=True)
    assert {name.split(".")[-1]: kind for name, kind in optim.kinds(core).items()} == {
        "W": "decayed", "U": "decayed", "b": "kept", "c": "kept", "g": "kept",
    }  # fmt: skip
    assert optim.kinds(Dense(3, 2)) == {"U": "decayed", "b": "kept"}


def test_bad_names():
    with pytest.raises(KeyError, match="adagrad, adamw, sgd"):
        optim.optimiser(OptimConfig(name="adam"), torch.nn.Linear(1, 1))
    with pytest.raises(InputError, match=r"optim\.lr is 0"):
        optim.optimiser(OptimConfig(lr=0), torch.nn.Linear(1, 1))
    with pytest.raises(KeyError, match="cosine"):
        optim.check(OptimConfig(schedule="cosin"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("embedding_lr", -1), ("pole_lr", -1), ("warmup", 1.5), ("lr", float("inf")), ("lr", float("nan")),
        ("betas", (0.9, 1.0)), ("betas", (-0.1, 0.9)), ("momentum", -1),
        ("momentum", 1), ("weight_decay", -0.1), ("warmup", -1), ("final_lr", -1), ("factor", -2), ("patience", -1),
        ("clip_norm", -1), ("clip_value", float("nan")),
    ],
)  # fmt: skip
def test_numbers_out_of_their_range(name, value):
    with pytest.raises(InputError, match=rf"optim\.{name} is"):
        optim.optimiser(OptimConfig(**{name: value}), torch.nn.Linear(1, 1))


class Tables(torch.nn.Module):
    """A large table, a small one, a large one that a read-out shares."""

    def __init__(self):
        super().__init__()
        self.large, self.small, self.tied = Embedding(3000, 100), Embedding(30, 4), Embedding(3000, 100)
        self.out = torch.nn.Linear(100, 3000, bias=False)
        self.out.weight = self.tied.weight

    def forward(self, x):
        y = self.large(x) + self.tied(x) + torch.nn.functional.pad(self.small(x % 30), (0, 96))
        return torch.nn.functional.cross_entropy(self.out(y), (x * 7) % 3000)


@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_large_tables_are_changed_by_rows_to_the_same_weights(clip):
    how = OptimConfig(name="adagrad", lr=0.1, embedding_lr=0.5, clip_norm=clip)
    found, norms = [], []
    for alone in (True, False):
        torch.manual_seed(0)
        model = Tables().double()  # the first step is g / |g|, whatever is left of a small g
        before, optimiser = model.large.weight.detach().clone(), optim.optimiser(how, model)
        by_rows = [table for group in optimiser.param_groups if group["rows"] for table in group["params"]]
        assert len(by_rows) == 1 and by_rows[0] is model.large.weight  # the gradient of a tied one has all rows
        with optim.by_rows(optimiser, alone):
            for step in range(4):
                optimiser.zero_grad()
                model(torch.arange(5).repeat(2) * (step + 1)).backward()  # each word twice
                assert model.large.weight.grad.is_sparse == alone and not model.tied.weight.grad.is_sparse
                assert not model.small.weight.grad.is_sparse
                norms.append(optim.clip(how, list(model.parameters())))
                optimiser.step()
        model(torch.arange(5)).backward()
        assert not hasattr(model.large.weight, "by_rows") and optimiser.param_groups[0]["fused"]
        found.append([parameter.detach().clone() for parameter in model.parameters()])
        assert torch.equal(model.large.weight[100:], before[100:])  # what nobody read stays
    assert norms[:4] == pytest.approx(norms[4:], rel=1e-5)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("alone", [True, False])
def test_embedding_lr_is_that_of_tables_changed_by_rows_too(alone):
    """Adagrad by hand, w -= lr factor g / (sqrt(sum of g^2) + 1e-10): a word of a table learns at lr embedding_lr."""
    torch.manual_seed(0)
    model = Tables().double()
    lr, factor, words = 0.1, 0.25, torch.tensor([3, 7, 7])
    optimiser = optim.optimiser(OptimConfig(name="adagrad", lr=lr, embedding_lr=factor, warmup=0), model)
    names = {"large": model.large.weight, "small": model.small.weight}
    wanted = {name: weight.detach().clone() for name, weight in names.items()}
    squares = {name: torch.zeros_like(weight) for name, weight in wanted.items()}
    with optim.by_rows(optimiser, alone):
        for step in range(3):
            optim.set_lr(optimiser, lr * (step + 1))  # a schedule sets it anew
            optimiser.zero_grad()
            model(words).backward()
            assert model.large.weight.grad.is_sparse == alone
            for name, weight in names.items():
                g = weight.grad.to_dense()
                squares[name] += g * g
                wanted[name] -= lr * (step + 1) * factor * g / (squares[name].sqrt() + 1e-10)
            optimiser.step()
    for name, weight in names.items():
        torch.testing.assert_close(weight.detach(), wanted[name], rtol=1e-9, atol=1e-12)
        assert squares[name].any()  # there was something to learn


@pytest.mark.parametrize(("norm", "value"), [(0.5, 0.0), (50.0, 0.0), (0.5, 0.1), (0.0, 0.1)])
def test_clipping_is_that_of_torch(norm, value):
    torch.manual_seed(0)
    ours, theirs = ([torch.nn.Parameter(torch.zeros(7)) for _ in range(3)] for _ in range(2))
    for one, other in zip(ours, theirs, strict=True):
        one.grad = torch.randn(7)
        other.grad = one.grad.clone()
    before = optim.clip(OptimConfig(clip_norm=norm, clip_value=value), ours)
    assert before == pytest.approx(float(torch.nn.utils.get_total_norm([p.grad for p in theirs])))
    if value:
        torch.nn.utils.clip_grad_value_(theirs, value)
    if norm:
        torch.nn.utils.clip_grad_norm_(theirs, norm)
    assert all(torch.equal(one.grad, other.grad) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", optim.OPTIMISERS)
def test_the_optimisers_are_torchs(name):
    """To the last bit, and they can be saved and restored."""
    config = OptimConfig(name=name, lr=0.1, weight_decay=0.0)
    theirs = {
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, betas=config.betas, weight_decay=0.0, fused=True),
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=config.momentum),
        "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, fused=True),
    }
    weights = []
    for make in (lambda model: optim.optimiser(config, model), lambda model: theirs[name](model.parameters())):
        torch.manual_seed(0)
        model = torch.nn.Linear(5, 3)
        made = make(model)
        for i in range(3):
            made.zero_grad()
            model(torch.randn(4, 5)).square().sum().backward()
            made.step()
            if i == 1:
                made.load_state_dict(made.state_dict())
        weights.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
        assert all(p.requires_grad and p.grad is not None for p in model.parameters())
    assert torch.equal(*weights)
