"""All that the lens measures of a model, in one report: numbers by name, sentences, and a page."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman import state as states
from elman.cells.hmm import HMM
from elman.compose import LearnedStart
from elman.files.config import Json
from elman.lengths import valid
from elman.lens.context import Context, context
from elman.lens.flow import ANCHORS, Flow, Reach, flow, layers_of, reach
from elman.lens.gates import Gate, Health, gates, health, timescale
from elman.lens.influence import Influence, influence
from elman.lens.layers import Layer, flat, inspection_mode, trajectory, unflat
from elman.lens.sample import Sample, causal, core_of, features, losses
from elman.lens.spectra import WIDEST, Isometry, Spectrum, isometry, lyapunov, spectrum
from elman.lens.units import Follower, properties, units
from elman.lens.verdict import Findings, kind, verdict, worst
from elman.options import whole
from elman.state import State
from elman.tables import Table, paragraph

FORMAT = "elman-lens-1"
ROWS = 16  # whose states are inspected
IN_MEMORY = 1 << 26  # numbers of states at a time
EXPONENTS = 32
MOST_UNITS = 512  # units whose values the page has


class UnitTraces(NamedTuple):
    """The values of some units of a layer over the first row, for the page."""

    layer: str
    leaf: str  # the part of the state that they are in
    units: list[int]
    values: Tensor  # (T, units)
    flow: Tensor  # (steps, units) |dL/ds|


@dataclass(frozen=True)
class Report:
    """What `inspect` found. `verdict` are sentences, `to_json()` all numbers by name, `save(path)` writes the page."""

    title: str
    model: str
    rows: int
    steps: int
    causal: bool
    loss: float
    reach: list[Reach]
    flow: list[Flow]
    spectrum: list[Spectrum]
    lyapunov: dict[str, list[float]]
    isometry: list[Isometry]
    gates: list[Gate]
    timescale: dict[str, Tensor]
    health: list[Health]
    influence: list[Influence]
    context: Context | None
    units: list[Follower]
    traces: list[UnitTraces]
    names: list[str]
    missing: dict[str, str]
    verdict: list[str]
    panels: tuple[dict[str, object], ...] = ()
    config: dict[str, Json] = field(default_factory=dict)
    command: str = ""
    training: list[dict[str, float]] = field(default_factory=list)
    about: str = ""  # what a step is, if it is not an input

    @property
    def kind(self) -> str:
        """exploding, vanishing or stable, for the worst layer."""
        reach = worst(self.reach)
        return "stateless" if reach is None else kind(reach)

    def to_json(self) -> dict[str, Json]:
        """Everything but the values of units: numbers of six digits, null for those that are not finite."""
        content = {
            "format": FORMAT, "title": self.title, "model": self.model, "command": self.command, "rows": self.rows,
            "steps": self.steps, "causal": self.causal, "loss": self.loss, "kind": self.kind, "about": self.about,
            "verdict": self.verdict,
            "reach": [part.to_json() for part in self.reach],
            "flow": [{"layer": part.name, "steps": part.steps, "norm": part.norm} for part in self.flow],
            "lyapunov": [{"layer": name, "exponents": values} for name, values in self.lyapunov.items()],
            "isometry": [_isometry(part) for part in self.isometry],
            "spectrum": [_spectrum(part) for part in self.spectrum],
            "gates": [_gate(part) for part in self.gates],
            "timescale": [{"layer": name, "steps": steps} for name, steps in self.timescale.items()],
            "health": [part.__dict__ for part in self.health],
            "influence": [{**part.__dict__, "values": _digits(part.values, 3)} for part in self.influence],
            "context": None if self.context is None else {
                **self.context.__dict__, "effective_context": self.context.effective},
            "units": [part.__dict__ for part in self.units],
            "names": self.names, "panels": list(self.panels), "training": self.training, "config": self.config,
            "missing": self.missing,
        }  # fmt: skip
        return {name: plain(value) for name, value in content.items()}

    def table(self) -> Table:
        """A line for each layer."""
        rows = []
        for r in self.reach:
            top = self.lyapunov.get(r.name)
            half = f"{r.half_life:.1f}" if math.isfinite(r.half_life) else "none"
            gate = next((f"{g.name} {g.saturation:.0%}" for g in self.gates if g.layer == r.name), "")
            exponent = f"{top[0]:+.4f}" if top else ""
            rows.append([r.name, kind(r), half, str(r.horizon), f"{r.slope:+.4f}", exponent, gate])
        header = ["layer", "gradient", "half-life", "horizon", "slope", "exponent", "gate shut or open"]
        return Table(f"{self.title}: {self.rows} rows of {self.steps} steps", header, rows)

    def _repr_html_(self) -> str:
        about = [self.about] if self.about else []
        left_out = [f"Left out: {name}, since {why}." for name, why in self.missing.items()]
        more = 'The page has everything: report.save("page.html").'
        said = "".join(map(paragraph, [self.model, *about, *self.verdict, *left_out, more]))
        return f"<div>{self.table()._repr_html_()}{said}</div>"

    def save(self, path: str | Path, against: Sequence[Report] = ()) -> None:
        """Write the page, with other reports next to this one: one HTML file that needs nothing else."""
        from elman.lens.document import write

        write(Path(path), [self, *against])


def plain(value: object) -> Json:
    """A value as JSON."""
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _digits(values: Tensor, digits: int) -> list[list[float]]:
    """A matrix of many numbers, with few digits each."""
    return [[float(f"{value:.{digits}g}") for value in row] for row in values.tolist()]


def _isometry(part: Isometry) -> dict[str, object]:
    """Of many singular values, the largest, the median and the smallest; and some between them."""
    shares = torch.linspace(1, 0, 33, dtype=torch.float64)
    quantiles = [values.double().quantile(shares, 1).mean(1) for values in part.values]
    return {
        "layer": part.layer, "tau": part.tau, "largest": [float(values.max()) for values in part.values],
        "median": [float(values.median()) for values in part.values],
        "smallest": [float(values.min()) for values in part.values], "quantiles": quantiles,
    }  # fmt: skip


def _spectrum(part: Spectrum) -> dict[str, object]:
    values = part.values[part.values.abs().argsort(descending=True)][:1024]
    some = replace(part, values=values)
    return {
        "layer": part.layer, "name": part.name, "real": values.real, "imag": values.imag,
        "radius": float(values.abs().max()) if len(values) else None, "time_constants": some.time_constants,
        "periods": some.periods,
    }  # fmt: skip


def _gate(part: Gate) -> dict[str, object]:
    return {
        "layer": part.layer, "gate": part.name, "mean": part.mean, "low": part.low, "high": part.high,
        "saturation": part.saturation,
    }  # fmt: skip


def inspect(
    model: nn.Module,
    x: State | Sample,
    y: State | None = None,
    *,
    lengths: Tensor | None = None,
    names: Sequence[Sequence[str]] = (),
    labels: dict[str, Tensor] | None = None,
    anchors: int = ANCHORS,
    title: str = "model",
) -> Report:
    """Inspect any Core or SequenceModel on some data: inputs x (B, T, ...), targets y.

    >>> from elman.cells import cell
    >>> report = inspect(cell("gru", 3, 4), torch.randn(4, 20, 3))
    >>> report.kind, len(report.verdict)
    ('stable', 5)
    """
    whole("anchors", anchors)
    if isinstance(x, Sample):
        sample = x
    else:
        every = torch.zeros(0, dtype=torch.int64) if lengths is None else lengths
        sample = Sample(x, y, every, names=names, labels=labels or {})
    model, core = copy.deepcopy((model, sample.core))  # they get hooks and flags, and others may be using the model
    sample = replace(sample, core=core)
    missing: dict[str, str] = {}
    sample = _first_episodes(model, sample, missing)
    loss, layers, values = _read_states(model, sample)
    flows = flow(model, sample.take(torch.arange(min(sample.shape[0], ROWS))))
    memories = {layer.name: _memory(layer, flows) for layer in layers}
    dynamics = _dynamics(layers, values, memories, missing)
    lags = reach(model, sample, anchors)
    within = context(model, sample, anchors)
    if within is None:
        missing["context"] = "the model reads the future, so it cannot be given the last n inputs alone"
    gated = [gate for layer, history in zip(layers, values, strict=True) for gate in gates(layer, history)]
    sick = [health(layer, history) for layer, history in zip(layers, values, strict=True)]
    longer = {layer.name: layer.cell.remedy for layer in layers if layer.cell.remedy}
    filters = frozenset(layer.name for layer in layers if isinstance(layer.cell, HMM))
    seen = Findings(
        lags, dynamics.exponents, dynamics.largest, dynamics.radius, within, gated, sick, loss, filters, longer
    )
    followers, traces = _units(sample, layers, values, flows, memories)
    return Report(
        title, _summary(model), *sample.shape, causal(model), loss, lags, flows, dynamics.spectra, dynamics.exponents,
        dynamics.isometries, gated, dynamics.timescales, sick, _influences(model, sample, missing), within, followers,
        traces, list(sample.names[0])[: sample.shape[1]] if sample.names else [], missing, verdict(seen), sample.panels,
        about=sample.about,
    )  # fmt: skip


def _first_episodes(model: nn.Module, sample: Sample, missing: dict[str, str]) -> Sample:
    """The sample; of a core with a learned start, whose layers read episodes as rows, the first episode of each row."""
    later = sample.reset.clone()
    later[:, 0] = False
    starts = any(isinstance(part, LearnedStart) for part in core_of(model, sample).modules())
    if not starts or not bool(later.any()):
        return sample
    missing["later episodes"] = "a core with a learned start reads them as rows of their own; each row is cut before"
    first = torch.where(later.any(1), later.int().argmax(1), sample.shape[1])
    return sample.take(torch.arange(len(first)), torch.minimum(sample.lengths, first))


def _summary(model: nn.Module) -> str:
    numbers = sum(parameter.numel() for parameter in model.parameters())
    return f"{type(model).__name__} with {numbers:,} parameters"


def _read_states(model: nn.Module, sample: Sample) -> tuple[float, list[Layer], list[Tensor]]:
    """The loss, the layers, and their states (B, T + 1, N), for some rows."""
    B, T = sample.shape
    with inspection_mode(model), torch.no_grad():
        wide = sum(layer.size for layer in layers_of(model, sample.take(torch.arange(1)))) or 1
        part = sample.take(torch.arange(max(1, min(B, ROWS, IN_MEMORY // (wide * T)))))
        terms = losses(model, features(model, part), part)
        count = len(terms) if terms.dim() == 1 else int(part.lengths.sum())
        layers = layers_of(model, part)
        return float(terms.sum()) / max(1, count), layers, [trajectory(layer) for layer in layers]


class _Dynamics(NamedTuple):
    spectra: list[Spectrum]
    exponents: dict[str, list[float]]
    isometries: list[Isometry]
    timescales: dict[str, Tensor]
    largest: dict[str, float]
    radius: dict[str, float]


class _Memory(NamedTuple):
    """The leaf of a state in which a cell keeps its memory: its name, and which of the real numbers it has."""

    name: str
    numbers: slice


def _memory(layer: Layer, flows: list[Flow]) -> _Memory:
    """The last leaf that the loss depends on; the last of all if it depends on none."""
    state = layer.cell.init_state(1)
    ends = [0, *accumulate(flat(leaf).shape[1] for leaf in states.leaves(state))]
    names = [name.rpartition(".")[2] or "s" for name in states.names(state)]
    parts = [_Memory(name, slice(*pair)) for name, pair in zip(names, pairwise(ends), strict=True)]
    gradient = next((part.units for part in flows if part.name == layer.name), torch.zeros(0, ends[-1]))
    return next((part for part in reversed(parts) if bool((gradient[:, part.numbers] != 0).any())), parts[-1])


def _dynamics(
    layers: list[Layer], values: list[Tensor], memories: dict[str, _Memory], missing: dict[str, str]
) -> _Dynamics:
    dynamics = _Dynamics([], {}, [], {}, {}, {})
    for layer, history in zip(layers, values, strict=True):
        if not bool(history.isfinite().all()):
            missing[f"spectra of {layer.name}"] = "its states are not finite"
            continue
        if int(layer.lengths[0]) == 0 or layer.size == 0:
            missing[f"spectra of {layer.name}"] = "its first row is empty" if layer.size else "its state is empty"
            continue
        with inspection_mode(layer.cell):
            _of_layer(layer, history, memories[layer.name], dynamics)
        if layer.size > WIDEST:
            missing[f"isometry of {layer.name}"] = f"its state has {layer.size} numbers; the limit is {WIDEST}"
    return dynamics


def _without_first_reset(layer: Layer, history: Tensor) -> Layer:
    """The first row without a first input that starts an episode: no state enters that step, so its Jacobian means
    nothing. A leaf of a tree has nothing below it, and would seem to erase everything."""
    if not bool(layer.reset[0, 0]):
        return layer
    one = layer.rows(slice(0, 1))
    return one._replace(
        x=one.x[:, 1:], y=one.y[:, 1:], reset=one.reset[:, 1:], lengths=one.lengths - 1,
        state=unflat(history[:1, 1], layer.cell.init_state(1)),
    )  # fmt: skip


def _of_layer(layer: Layer, history: Tensor, memory: _Memory, dynamics: _Dynamics) -> None:
    under_way = _without_first_reset(layer, history)
    if int(under_way.lengths[0]):
        dynamics.exponents[layer.name] = lyapunov(under_way, EXPONENTS).tolist()
    spectra = spectrum(layer)
    dynamics.spectra.extend(spectra)
    if spectra and spectra[0].name != "J":  # of a Jacobian, which is that of one step
        dynamics.radius[layer.name] = max(float(part.values.abs().max()) for part in spectra)
    found_isometry = isometry(layer)
    if found_isometry is not None:
        dynamics.isometries.append(found_isometry)
        dynamics.largest[layer.name] = float(found_isometry.values[0].max())
    steps = timescale(layer, history)
    if steps is not None:
        dynamics.timescales[layer.name] = steps[memory.numbers]


def _units(
    sample: Sample, layers: list[Layer], values: list[Tensor], flows: list[Flow], memories: dict[str, _Memory]
) -> tuple[list[Follower], list[UnitTraces]]:
    followers: list[Follower] = []
    traces: list[UnitTraces] = []
    labels = {**(properties(sample.names, sample.shape[1]) if sample.names else {}), **sample.labels}
    by_layer = {part.name: part for part in flows}
    for layer, history in zip(layers, values, strict=True):
        leaf, numbers = memories[layer.name]
        memory = torch.nan_to_num(history[:, 1:, numbers])
        if layer.backwards:
            memory = kernels.reverse(memory, layer.lengths)
        B, T = memory.shape[:2]
        inside = valid(layer.lengths, T)
        own = {name: where[:B, :T] for name, where in labels.items()}
        followers.extend(units(layer.name, memory, own, inside))
        chosen = _choose_units(memory, followers, layer.name, max(1, MOST_UNITS // len(layers)))
        gradient = by_layer[layer.name].units[:, numbers][:, chosen]
        traces.append(UnitTraces(layer.name, leaf, chosen.tolist(), memory[0][:, chosen], gradient))
    return followers, traces


def _choose_units(memory: Tensor, followers: list[Follower], layer: str, most: int) -> Tensor:
    """The units on the page: all; if there are too many, those that follow something and those that vary most."""
    N = memory.shape[2]
    if most >= N:
        return torch.arange(N)
    moves = memory.flatten(0, 1).std(0)
    named = [unit for follower in followers if follower.layer == layer for unit in follower.units]
    moves[torch.tensor(named, dtype=torch.int64)] = math.inf
    return moves.topk(most).indices.sort().values


def _influences(model: nn.Module, sample: Sample, missing: dict[str, str]) -> list[Influence]:
    results = [influence(model, sample, how) for how in ("gradient", "integrated")]
    residual = results[1].residual
    if residual is not None and not residual < 1e-3:
        missing["completeness of integrated gradients"] = f"they add up only to within {residual:.2g}"
    return results
