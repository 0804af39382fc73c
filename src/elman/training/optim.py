"""Optimisers, schedules and clipping.

What a parameter is, decides how it is changed:

    embedding  a table of vectors: its learning rate has a factor of its own, and it does not decay
    pole       named in its module's `poles`: its learning rate has a factor of its own, and it does not decay
    kept       fewer than two axes (biases, gains, norms), or named in its module's `no_weight_decay`: does not decay
    decayed    everything else: the dense matrices

A parameter that several modules share is the first of these that one of them makes it: a read-out tied to an embedding
is an embedding. What an optimiser remembers is kept by the parameter's name.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from elman.errors import FileError, InputError, UnknownNameError
from elman.files.config import one_of
from elman.nn.embed import Embedding
from elman.options import fraction, number, positive, whole

OPTIMISERS = ("adamw", "sgd", "adagrad")
SCHEDULES = ("constant", "cosine", "plateau")
NOT_NEGATIVE = ("embedding_lr", "pole_lr", "weight_decay", "final_lr", "factor", "clip_norm", "clip_value")
KINDS = ("embedding", "pole", "kept", "decayed")
LARGE = 1 << 18  # numbers in a table from which on it is worth it to change some rows only


@dataclass(frozen=True)
class OptimConfig:
    """How weights are changed.

    Args:
        name: adamw, sgd or adagrad
        lr: the learning rate after the warm-up
        embedding_lr: the learning rate of embeddings, as a factor of lr
        pole_lr: the learning rate of the poles of linear recurrences (lru, s4d, s5), as a factor of lr; an error in
            a pole grows with the steps that it remembers, so that long memories need less than 1
        weight_decay: shrinks the dense matrices; never biases, gains, embeddings or the constants of a recurrence
        momentum: the momentum of sgd
        betas: the decay rates of the moments of adamw
        schedule: constant, cosine (down to final_lr at the end) or plateau (multiplied by factor when
            evaluations stop improving)
        warmup: steps over which the learning rate rises from zero
        final_lr: where cosine ends, as a fraction of lr
        factor: what plateau multiplies the learning rate by
        patience: how many evaluations without improvement plateau waits
        clip_norm: the largest norm of the whole gradient; 0 for none
        clip_value: the largest element of the gradient; 0 for none
    """

    name: str = one_of("adamw", OPTIMISERS)
    lr: float = 0.002
    embedding_lr: float = 1.0
    pole_lr: float = 1.0
    weight_decay: float = 0.01
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.99)
    schedule: str = one_of("cosine", SCHEDULES)
    warmup: int = 50
    final_lr: float = 0.01
    factor: float = 0.5
    patience: int = 2
    clip_norm: float = 1.0
    clip_value: float = 0.0


def check(config: OptimConfig) -> None:
    """Raise an error that names the first setting that is out of its range."""
    if config.name not in OPTIMISERS:
        raise UnknownNameError("optimiser", config.name, OPTIMISERS)
    if config.schedule not in SCHEDULES:
        raise UnknownNameError("schedule", config.schedule, SCHEDULES)
    positive("optim.lr", config.lr)
    fraction("optim.momentum", config.momentum)
    for beta in config.betas:
        fraction("one of optim.betas", beta)
    for name in ("warmup", "patience"):
        whole(f"optim.{name}", getattr(config, name), least=0)
    for name in NOT_NEGATIVE:
        number(f"optim.{name}", getattr(config, name), 0)


def kinds(model: nn.Module) -> dict[str, str]:
    """What each parameter of a model that takes a gradient is, one of KINDS, by its name.

    >>> kinds(nn.Linear(3, 2))
    {'weight': 'decayed', 'bias': 'kept'}
    """
    found: dict[Tensor, str] = {}
    for module in model.modules():
        for listed in ("no_weight_decay", "poles"):
            for name in getattr(module, listed, ()):
                if not hasattr(module, name):  # an option may have left it out, then it is None
                    raise InputError(f"{type(module).__name__}.{listed} names {name!r}, which is not a parameter of it")
        for name, parameter in module.named_parameters(recurse=False):
            found[parameter] = min(found.get(parameter, "decayed"), _kind(module, name, parameter), key=KINDS.index)
    return {name: found[parameter] for name, parameter in model.named_parameters() if parameter.requires_grad}


def _kind(module: nn.Module, name: str, parameter: Tensor) -> str:
    if isinstance(module, Embedding | nn.Embedding):
        return "embedding"
    if name in getattr(module, "poles", ()):
        return "pole"
    return "kept" if parameter.dim() < 2 or name in getattr(module, "no_weight_decay", ()) else "decayed"


def optimiser(config: OptimConfig, model: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of a model's parameters, with one group for each kind of them."""
    check(config)
    members: dict[str, list[tuple[str, Tensor]]] = defaultdict(list)
    for name, kind in kinds(model).items():
        members[kind].append((name, model.get_parameter(name)))
    rows = _tables(model) if config.name == "adagrad" else set()
    members["rows"] = [(name, parameter) for name, parameter in members["embedding"] if parameter in rows]
    members["embedding"] = [(name, parameter) for name, parameter in members["embedding"] if parameter not in rows]
    factors = {"embedding": config.embedding_lr, "rows": config.embedding_lr, "pole": config.pole_lr}
    groups = [
        {
            "params": members[kind],
            "weight_decay": config.weight_decay if kind == "decayed" else 0.0,
            "factor": factors.get(kind, 1.0),
            "rows": kind == "rows",
        }
        for kind in members
        if members[kind]
    ]
    if config.name == "sgd":
        made = _without_compiler(torch.optim.SGD)(groups, lr=config.lr, momentum=config.momentum)
    elif config.name == "adagrad":
        made = _without_compiler(torch.optim.Adagrad)(groups, lr=config.lr, fused=True)
    else:
        made = _without_compiler(torch.optim.AdamW)(groups, lr=config.lr, betas=config.betas, fused=True)
    set_lr(made, config.lr)
    return made


def _without_compiler(kind: type[torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """The same optimiser without what Torch wraps its methods in for its compiler, all of which would be imported: that
    takes half a second."""
    names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict", "step")
    plain = {name: inspect.unwrap(getattr(kind, name)) for name in names}
    return type(kind.__name__, (kind,), {**plain, "step": torch.no_grad()(plain["step"])})


def _tables(model: nn.Module) -> set[Tensor]:
    """Large tables of vectors that no other module shares."""
    held = Counter(p for module in model.modules() for p in module.parameters(recurse=False))
    tables = (module.weight for module in model.modules() if isinstance(module, Embedding))
    return {table for table in tables if held[table] == 1 and table.numel() >= LARGE}


@contextmanager
def by_rows(optimiser: torch.optim.Optimizer, alone: bool = True) -> Iterator[None]:
    """In here large tables have gradients, and are changed, only in the rows that were looked up: Adagrad leaves the
    others as they are. Of 16,000 words a batch of sentences has some hundreds. Only for a process that is `alone`."""
    groups = [group for group in optimiser.param_groups if alone and group["rows"]]
    tables = [table for group in groups for table in group["params"]]
    for group in groups:
        group["fused"] = False  # which takes no such gradient
    for table in tables:
        table.by_rows = True
    try:
        with torch.sparse.check_sparse_tensor_invariants(False):  # else Torch warns that it does not check
            yield
    finally:
        for group in groups:
            group["fused"] = True
        for table in tables:
            del table.by_rows


def set_lr(optimiser: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate, that of embeddings and poles by their factors."""
    for group in optimiser.param_groups:
        group["lr"] = lr * group["factor"]


class Schedule:
    """The learning rate of each step. Only plateau remembers anything, and that is in `memory`, ready for JSON."""

    def __init__(self, config: OptimConfig, steps: int) -> None:
        self.config, self.steps = config, steps
        self.memory: dict[str, float] = {"scale": 1.0, "bad": 0}

    def lr(self, step: int) -> float:
        """The learning rate of update number `step`, counted from 0."""
        config = self.config
        if step < config.warmup:
            return config.lr * (step + 1) / config.warmup
        if config.schedule != "cosine":
            return config.lr * self.memory["scale"]
        done = (step - config.warmup) / max(1, self.steps - config.warmup)
        return config.lr * (config.final_lr + (1 - config.final_lr) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))

    def describe_change(self, before: int, step: int) -> str:
        """How a run that was to have `before` steps continues with this schedule after `step` of them, in words."""
        if self.config.schedule != "cosine":
            return f"The {self.config.schedule} schedule does not depend on the length of a run: it continues as it was"
        last, after = Schedule(self.config, before).lr(max(0, step - 1)), self.lr(step)
        return (
            f"The cosine schedule is now one over {self.steps} steps: the learning rate was {last:.3g} in step {step}, "
            f"continues with {after:.3g} and ends with {self.lr(self.steps):.3g}"
        )

    def observe(self, improved: bool) -> None:
        """Take note of an evaluation."""
        if self.config.schedule != "plateau":
            return
        self.memory["bad"] = 0 if improved else self.memory["bad"] + 1
        if self.memory["bad"] > self.config.patience:
            self.memory = {"scale": self.memory["scale"] * self.config.factor, "bad": 0}


def clip(config: OptimConfig, parameters: list[Tensor]) -> float:
    """Clip the gradients, by element and then by norm; the norm that they had."""
    gradients = [_numbers(p) for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    clipped = norm
    if config.clip_value:
        torch._foreach_clamp_min_(gradients, -config.clip_value)
        torch._foreach_clamp_max_(gradients, config.clip_value)
        clipped = torch.nn.utils.get_total_norm(gradients)
    if config.clip_norm and not float(clipped) <= config.clip_norm:
        torch._foreach_mul_(gradients, config.clip_norm / (clipped + 1e-6))
    return float(norm)


def _numbers(parameter: Tensor) -> Tensor:
    """The gradient of a parameter; where it is by rows, those, each once."""
    assert parameter.grad is not None
    if not parameter.grad.is_sparse:
        return parameter.grad
    parameter.grad = parameter.grad.coalesce()
    return parameter.grad._values()


@torch.no_grad()
def step(optimiser: torch.optim.Optimizer, measured: bool) -> float:
    """Change the weights; where that is `measured`, by how much: |change| / |weights before|, else 0.

    About 1e-3 is usual. Far above, a run is not stable; far below, it learns nothing.
    """
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    before = [parameter.clone() for parameter in parameters] if measured else []
    optimiser.step()
    if not before:
        return 0.0
    changes = [parameter - old for parameter, old in zip(parameters, before, strict=True)]
    norm, change = (torch.nn.utils.get_total_norm(values) for values in (before, changes))
    return float(change) / float(norm) if float(norm) else 0.0


def tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What the optimiser remembers of each parameter, by name: "core.cores.0.W/exp_avg"."""
    return {
        f"{name}/{part}": value
        for name, parameter in _named(optimiser).items()
        for part, value in optimiser.state.get(parameter, {}).items()
        if value is not None
    }


def restore(optimiser: torch.optim.Optimizer, stored: dict[str, Tensor]) -> None:
    """Give back what `tensors` returned. The parameters are found by name, in whatever order they stand."""
    parameters = _named(optimiser)
    number = {name: i for i, name in enumerate(parameters)}  # as the optimiser's own state_dict counts them
    state: dict[int, dict[str, Tensor]] = defaultdict(dict)
    for key, value in stored.items():
        name, _, part = key.rpartition("/")
        if name not in parameters:
            raise FileError(
                f"the optimiser's state is of a parameter {name or key!r} that this model does not have. The file "
                "is of another model, or of a version of Elman that numbered parameters. Start the run again."
            )
        if value.dim() and value.shape != parameters[name].shape:
            raise FileError(
                f"the optimiser's state {key!r} has the shape {list(value.shape)}, the parameter "
                f"{list(parameters[name].shape)}: the checkpoint was written for another model. Start the run again."
            )
        state[number[name]][part] = value
    optimiser.load_state_dict({"state": dict(state), "param_groups": optimiser.state_dict()["param_groups"]})


def _named(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        name: parameter
        for group in optimiser.param_groups
        for name, parameter in zip(group["param_names"], group["params"], strict=True)
    }
