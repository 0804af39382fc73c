import itertools

import pytest
import torch

from elman.errors import InputError
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


@pytest.mark.parametrize("name", ["adamw", "sgd"])
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


def test_biases_do_not_decay():
    groups = optim.optimiser(OptimConfig(weight_decay=0.3), torch.nn.Linear(3, 2)).param_groups
    assert [(g["weight_decay"], [p.dim() for p in g["params"]]) for g in groups] == [(0.3, [2]), (0.0, [1])]


def test_bad_names():
    with pytest.raises(KeyError, match="adamw, sgd"):
        optim.optimiser(OptimConfig(name="adam"), torch.nn.Linear(1, 1))
    with pytest.raises(InputError, match=r"optim\.lr is 0"):
        optim.optimiser(OptimConfig(lr=0), torch.nn.Linear(1, 1))
    with pytest.raises(KeyError, match="cosine"):
        optim.check(OptimConfig(schedule="cosin"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lr", float("inf")), ("lr", float("nan")), ("betas", (0.9, 1.0)), ("betas", (-0.1, 0.9)), ("momentum", -1),
        ("momentum", 1), ("weight_decay", -0.1), ("warmup", -1), ("final_lr", -1), ("factor", -2), ("patience", -1),
        ("clip_norm", -1), ("clip_value", float("nan")),
    ],
)  # fmt: skip
def test_numbers_out_of_their_range(name, value):
    with pytest.raises(InputError, match=rf"optim\.{name} (is|are)"):
        optim.optimiser(OptimConfig(**{name: value}), torch.nn.Linear(1, 1))
