"""A search: many runs of one config, each with its own values of some settings, in a folder each.

The values are drawn by optuna, which keeps them and their scores in `search.db`. With successive halving all runs train
for a share of the steps; the best of them are resumed for `factor` times as many, and so on: a rung is a pause of a
run, so nothing is trained twice, and the learning rate is that of the whole run. What was killed continues to the same
end: the values of a trial depend on the seed and on its number alone, and runs resume to the same bytes.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elman import run, tasks
from elman.errors import ElmanError, FileError, InputError, MissingExtraError, TrainingError
from elman.files import config
from elman.files.config import Json
from elman.options import choice, flag
from elman.progress import clock, quiet, say
from elman.run import pictures
from elman.run.space import Space, open_space, with_values
from elman.tables import Table
from elman.tasks.request import Request, option
from elman.tasks.task import AnySettings, TrainedSettings
from elman.training import checkpoint
from elman.training.lock import lock
from elman.training.record import read_metrics
from elman.training.scores import Scores

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study

BASE, SPACE, REQUEST, BEST, PICTURE = "base.yaml", "space.yaml", "search.json", "best.yaml", "search.png"


@dataclass(frozen=True)
class SearchRequest(Request):
    """How long and in which way to search."""

    trials: int = option(20, "how many runs to begin, each with values drawn from the space", least=1, most=100_000)
    method: str = option(
        "halving",
        "halving: all runs train for a share of the steps, the best of them for more; random: all for all steps",
        choices=("halving", "random"),
    )
    factor: int = option(3, "of so many runs one goes on at each rung of halving, for so many times the steps", least=2)


@dataclass(frozen=True)
class Trial:
    """One run of a search. Its score is the best on the validation data so far, None if it has none."""

    number: int
    values: dict[str, Json]
    folder: str
    score: float | None = None
    steps: int = 0
    status: str = ""


@dataclass(frozen=True)
class SearchResult:
    """The trials of a search, the best first; `best` is the config of that one, with a run directory of its own."""

    score: str
    larger_is_better: bool
    trials: Sequence[Trial]
    best: AnySettings

    def table(self) -> Table:
        """A row for each trial."""
        names = [*self.trials[0].values]
        rows = [
            [
                str(one.number), "-" if one.score is None else f"{one.score:.4f}", str(one.steps), one.status,
                *(_plain(one.values[name]) for name in names),
            ]
            for one in self.trials
        ]  # fmt: skip
        title = f"{len(rows)} trials, the best first"
        return Table(title, ["trial", self.score.replace("_", " "), "steps", "status", *names], rows)


def search(
    settings: AnySettings,
    space: Mapping[str, Any],
    data: object = None,
    *,
    out: str | Path | None = None,
    resume: str = "never",
    progress: bool = True,
    **options: Any,
) -> SearchResult:
    """Train a config with other values of some settings, drawn from a space, and find the best. `elman search` is a
    thin layer on this.

    `space` says what to try of each setting, as {"optim.lr": "log(1e-4, 1e-2)", "model.size": [64, 128]}; `data` is as
    in `elman.train`; `options` are those of the command, as trials=20. The folder `out` gets a run for each trial, in
    trials/, a config of the best, best.yaml, and a picture. With `resume` auto a search that was stopped continues.

    >>> import tempfile
    >>> config = elman.LMConfig(model={"size": 8}, training={"steps": 4, "evaluate_every": 2})
    >>> folder = tempfile.mkdtemp() + "/search"
    >>> text = "to be or not to be, " * 400
    >>> found = search(config, {"optim.lr": "log(1e-4, 1e-1)"}, text, out=folder, trials=2, progress=False)
    >>> found.trials[0].score <= found.trials[1].score, sorted(found.trials[0].values)
    (True, ['optim.lr'])
    """
    request, opened = SearchRequest(**options), open_space(settings, space)
    choice("resume", resume, ("never", "auto"))
    folder = Path(os.path.expanduser(settings.out if out is None else out))
    if not str(folder) or folder == Path("."):
        raise InputError("a search needs a folder for its runs: name it by out")
    drawn = _draw(opened, request.trials, settings.seed)
    _check(settings, [_values(opened, params) for params in drawn], data)
    with nullcontext() if flag("progress", progress) else quiet(), lock(folder):
        _begin(folder, settings, opened, request, resume)
        study = _study(folder, opened, drawn)
        found = _Search(folder, settings, opened, request, data, study).run()
        _write(folder / BEST, config.render(found.best))
        pictures.draw(folder / PICTURE, found, opened)
    return found


class _Pause(Exception):
    """A run has reached its rung; its checkpoint is written."""


class _Search:
    """A search that runs: its trials, how far each has come, and what is left to do."""

    def __init__(
        self, folder: Path, settings: AnySettings, space: Space, request: SearchRequest, data: object, study: Study
    ) -> None:
        self.folder, self.request, self.data, self.study = folder, request, data, study
        self.values = [_values(space, one.params) for one in study.get_trials(deepcopy=False)]
        self.settings = [
            replace(with_values(settings, values), out=str(folder / "trials" / f"{n:03d}"), resume="auto")
            for n, values in enumerate(self.values)
        ]
        self.fitted = tasks.of_settings(settings).fits(settings)
        self.divisors = [1] if self.fitted or request.method == "random" else _divisors(settings, request)
        self.failed: dict[int, str] = {}
        self.rung = [0] * len(self.values)
        self.start, self.work, self.planned = time.monotonic(), 0.0, self._planned()

    def run(self) -> SearchResult:
        alive = [*range(len(self.values))]
        for rung, divisor in enumerate(self.divisors):
            for number in alive:
                self._advance(number, rung, divisor)
            alive = [number for number in alive if number not in self.failed]
            keep = max(1, len(self.values) // self.request.factor ** (rung + 1))
            if rung + 1 < len(self.divisors):
                alive = sorted(sorted(alive, key=self._order)[:keep])
        if not any(self._score(number) is not None for number in range(len(self.values))):
            raise InputError(
                f"no trial of {self.folder} has a score on validation data; name some in the data section of the config"
                + "".join(f". Trial {number} failed: {why}" for number, why in [*self.failed.items()][:1])
            )
        self._tell({*alive})
        return self._result({*alive})

    def _advance(self, number: int, rung: int, divisor: int) -> None:
        """Train a trial as far as a rung, unless it is there."""
        settings, folder = self.settings[number], Path(self.settings[number].out)
        self.rung[number] = rung
        last = rung + 1 == len(self.divisors)
        target = -(-_steps(settings) // divisor)
        reached = checkpoint.read_step(folder)
        if reached < target or (last and not _is_over(folder, self.fitted)):

            def pause(step: int, scores: Scores) -> None:
                if not last and target <= step < _steps(settings):
                    raise _Pause

            try:
                with suppress(_Pause):
                    run.train(settings, self.data, pause, progress=False)
            except TrainingError as error:
                self.failed[number] = str(error).partition(". ")[0]
            self.work += max(1, target - reached)
        self.planned -= target - (-(-_steps(settings) // self.divisors[rung - 1]) if rung else 0)
        self._say(number, rung)

    def _say(self, number: int, rung: int) -> None:
        score, values = self._score(number), self.values[number]
        said = ", ".join(f"{name}={_plain(value)}" for name, value in values.items())
        where = f"rung {rung + 1} of {len(self.divisors)}, " if len(self.divisors) > 1 else ""
        result = self.failed.get(number) or ("no score" if score is None else f"{self._primary()[0]} {score:.4f}")
        seconds = time.monotonic() - self.start
        left = f"  {clock(seconds / self.work * max(0.0, self.planned))} left" if self.work and self.planned > 0 else ""
        say(f"{where}trial {number}: {said}: {result}{left}")

    def _planned(self) -> float:
        """Steps of all trials, as far as they are to be trained; of what is fitted in one go, trials."""
        total, before = 0.0, 0.0
        for rung, divisor in enumerate(self.divisors):
            count = len(self.values) if not rung else max(1, len(self.values) // self.request.factor**rung)
            mean = sum(map(_steps, self.settings)) / len(self.settings)
            total, before = total + count * mean * (1 / divisor - before), 1 / divisor
        return total

    def _primary(self) -> tuple[str, bool]:
        for settings in self.settings:
            name, larger = checkpoint.read_primary(Path(settings.out))
            if name:
                return name.replace("_", " "), larger
        return "score", False

    def _score(self, number: int) -> float | None:
        """The best score so far on the validation data."""
        folder = Path(self.settings[number].out)
        if not (folder / "metrics.jsonl").exists():
            return None
        larger = self._primary()[1]
        values = [line["valid"] for line in read_metrics(folder) if math.isfinite(line.get("valid", math.nan))]
        return (max if larger else min)(values, default=None)

    def _order(self, number: int) -> tuple[bool, float, int]:
        """The best first; those without a score last. A run that went on has not become worse by that: a search that is
        resumed chooses the same."""
        score, larger = self._score(number), self._primary()[1]
        value = math.inf if score is None else -score if larger else score
        return (score is None, value, number)

    def _tell(self, alive: set[int]) -> None:
        """Note in optuna's records how each trial has ended."""
        from optuna.trial import TrialState

        for one in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            score = self._score(one.number)
            if one.number in self.failed or score is None:
                self.study.tell(one.number, state=TrialState.FAIL)
            elif one.number in alive:
                self.study.tell(one.number, score)
            else:
                self.study.tell(one.number, state=TrialState.PRUNED)

    def _result(self, alive: set[int]) -> SearchResult:
        numbers = sorted(range(len(self.values)), key=lambda n: (-self.rung[n], *self._order(n)))
        numbers.sort(key=lambda n: n in self.failed)
        name, larger = self._primary()
        trials = [
            Trial(n, self.values[n], self.settings[n].out, self._score(n), self._reached(n), self._status(n, alive))
            for n in numbers
        ]
        best = replace(self.settings[numbers[0]], out=str(self.folder / "best"), resume="never")
        return SearchResult(name, larger, trials, best)

    def _reached(self, number: int) -> int:
        return checkpoint.read_step(Path(self.settings[number].out))

    def _status(self, number: int, alive: set[int]) -> str:
        if number in self.failed:
            return f"failed: {self.failed[number]}"
        return "finished" if number in alive else f"stopped at rung {self.rung[number] + 1} of {len(self.divisors)}"


def _divisors(settings: AnySettings, request: SearchRequest) -> list[int]:
    """What part of its steps a run has trained for at each rung: one in so many. The first has an evaluation in it."""
    assert isinstance(settings, TrainedSettings)
    steps, factor, count = settings.training.steps, request.factor, 1
    while request.trials // factor**count and steps // factor**count >= settings.training.evaluate_every:
        count += 1
    if count == 1:
        say(
            f"{request.trials} trials of {steps} steps, evaluated every {settings.training.evaluate_every}, leave no "
            f"rung for halving by {factor}: every trial is trained whole"
        )
    return [factor**power for power in reversed(range(count))]


def _steps(settings: AnySettings) -> int:
    return settings.training.steps if isinstance(settings, TrainedSettings) else 1


def _is_over(folder: Path, fitted: bool) -> bool:
    """Whether a run whose last step is done has been tested too."""
    if fitted:
        return checkpoint.is_fitted(folder)
    lines = read_metrics(folder) if (folder / "metrics.jsonl").exists() else []
    return bool(lines) and checkpoint.read_step(folder) > 0 and "valid" not in lines[-1]


def _plain(value: Json) -> str:
    return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


# optuna


def _optuna() -> Any:
    """The package, which is imported only here, or an error that says what to install."""
    try:
        import optuna
    except ImportError as error:
        raise MissingExtraError("optuna", "search") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _draw(space: Space, trials: int, seed: int) -> list[dict[str, Any]]:
    """What is drawn for each trial, by a seed of its own: so it does not depend on how often a search was stopped."""
    optuna, drawn = _optuna(), []
    for number in range(trials):
        sampler = optuna.samplers.RandomSampler(seed=(seed * 1_000_003 + number) % 2**32)
        drawn.append(optuna.create_study(sampler=sampler).ask(_distributions(space)).params)
    return drawn


def _distributions(space: Space) -> dict[str, BaseDistribution]:
    return {name: part.distribution() for name, part in space.items()}


def _values(space: Space, params: Mapping[str, Any]) -> dict[str, Json]:
    """What was drawn, as values of settings."""
    return {name: part.value(params[name]) for name, part in space.items()}


def _study(folder: Path, space: Space, drawn: Sequence[dict[str, Any]]) -> Study:
    """The records of a search in its folder, with all its trials."""
    optuna = _optuna()
    study: Study = optuna.create_study(
        storage=f"sqlite:///{folder / 'search.db'}", study_name="elman", load_if_exists=True
    )
    for params in drawn[len(study.get_trials(deepcopy=False)) :]:
        running, make = optuna.trial.TrialState.RUNNING, optuna.trial.create_trial
        study.add_trial(make(state=running, params=params, distributions=_distributions(space)))  # whole, or not at all
    return study


def _check(settings: AnySettings, values: Sequence[dict[str, Json]], data: object) -> None:
    """Raise an InputError before anything is trained, or written, if one of the trials cannot be."""
    opened: dict[str, Any] = {}
    for number, own in enumerate(values):
        try:
            run.check(with_values(settings, own), data, opened)
        except ElmanError as error:
            said = ", ".join(f"{name}={_plain(value)}" for name, value in own.items())
            raise InputError(f"trial {number} ({said}) cannot be trained: {error}") from error


# The folder


def _begin(folder: Path, settings: AnySettings, space: Space, request: SearchRequest, resume: str) -> None:
    """Make the folder of a search, or see that the search in it is the same."""
    wanted = _description(settings, space, request)
    path = folder / REQUEST
    if not path.exists():
        others = [one.name for one in folder.iterdir() if one.name not in (BASE, SPACE, f".{BASE}", f".{SPACE}")]
        if others:
            raise InputError(f"{folder} exists, and is not a search: it has {others[0]}. Choose another --out.")
        _write(folder / BASE, config.render(replace(settings, out="", resume="never")))
        _write(folder / SPACE, "".join(f"{name}: {json.dumps(str(part))}\n" for name, part in space.items()))
        _write(path, json.dumps(wanted, indent=1) + "\n")  # last: with it, the search has begun
        return
    if resume != "auto":
        raise InputError(
            f"{folder} exists; a search is never overwritten. Choose another --out, or continue it with --resume auto."
        )
    before = read_request(folder)
    for name in sorted({*before, *wanted}):
        if before.get(name) != wanted.get(name):
            raise InputError(
                f"{folder} was started with {name} = {before.get(name)}, not {wanted.get(name)}; a search that is "
                f"resumed must be the same search. Leave {name} as it was, or choose another --out."
            )


def _description(settings: AnySettings, space: Space, request: SearchRequest) -> dict[str, Json]:
    """All that a search depends on but the data, which each run compares with its own."""
    made = {named.name: getattr(request, named.name) for named in request.options()}
    base = {name: value for name, value in config.settings_of(settings).items() if name not in config.WHERE}
    return {**made, **{f"space.{name}": str(part) for name, part in space.items()}, **base}


def read_request(folder: Path) -> dict[str, Json]:
    """What the search in a folder was started with."""
    try:
        content: dict[str, Json] = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"cannot read {folder / REQUEST}: {error}") from error
    return content


def _write(path: Path, text: str) -> None:
    """A file that is there whole or not at all."""
    temporary = path.with_name(f".{path.name}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error}") from error
