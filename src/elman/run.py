"""A whole run: the configs of all parts in one, and what is built from them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from elman import artifact
from elman.data import DataConfig, Splits, Streams, open_splits
from elman.data.observations import ObservationConfig, Reader, open_observations
from elman.errors import FileError, InputError, UnknownNameError
from elman.hmm import files
from elman.hmm.estimator import HiddenMarkovEstimator
from elman.tasks import TASKS, hidden_markov
from elman.tasks.hidden_markov import HMMConfig
from elman.tasks.language_model import KIND, VERSION, LanguageModel, ModelConfig, build
from elman.tasks.markov import Markov
from elman.training import checkpoint, loop, optim
from elman.training.checkpoint import Advance, Checkpoint
from elman.training.distributed import Ranks, ranks
from elman.training.interrupt import Interrupted
from elman.training.loop import Run, TrainingConfig
from elman.training.loop import train as turn
from elman.training.optim import OptimConfig, Schedule
from elman.training.record import Recorder, begin, read_metrics, summary_writer
from elman.training.unit import Unit


@dataclass(frozen=True)
class RunConfig:
    """A run from text to model.

    >>> RunConfig(model=ModelConfig(cell="lstm", size=512)).model.cell
    'lstm'

    Args:
        task: what is trained; lm is a language model
        data: the texts, and how batches are cut from them
        model: the network
        optim: how its weights are changed
        training: how long, and what is kept
        out: the run directory, which must be new unless a run is resumed
        resume: never, or auto to go on with the run in `out` if there is one
        seed: of everything that is random
        device: auto, cpu or cuda
    """

    task: str = "lm"
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    out: str = "runs/lm"
    resume: str = "never"
    seed: int = 0
    device: str = "auto"


@dataclass(frozen=True)
class HMMRunConfig:
    """A run from observations to a hidden Markov model.

    >>> HMMRunConfig(model=HMMConfig(emission="poisson")).data.read
    'columns'

    Args:
        task: what is trained; hmm is a hidden Markov model
        data: the observations
        model: the model, and how it is fitted
        out: the run directory, which must be new unless a run is resumed
        resume: never, or auto to take the run in `out` if it is done, and else to begin again, to the same end
        seed: of everything that is random
    """

    task: str = "hmm"
    data: ObservationConfig = field(default_factory=ObservationConfig)
    model: HMMConfig = field(default_factory=HMMConfig)
    out: str = "runs/hmm"
    resume: str = "never"
    seed: int = 0


CONFIGS: dict[str, type[RunConfig] | type[HMMRunConfig]] = {"lm": RunConfig, "hmm": HMMRunConfig}


def load(path: str | Path) -> Any:
    """The model of a run (its best, or its last), or one that was saved: a LanguageModel, or an estimator of elman.hmm.

    >>> import tempfile
    >>> from elman.data import VOCABULARIES
    >>> lm = LanguageModel(build(ModelConfig(size=8), 257), VOCABULARIES["byte"](), ModelConfig(size=8))
    >>> folder = tempfile.mkdtemp() + "/model"
    >>> lm.save(folder)
    >>> load(folder).score("any text")[0] == lm.score("any text")[0]
    True
    """
    root = Path(path)
    if not root.is_dir() and artifact.find(root) is None:
        raise FileError(f"there is no folder {root}; give a run directory, or what a model was saved to")
    for name in ("best", "last"):
        if folder := artifact.find(root / name):
            return _load(folder)
    return _load(artifact.find(root) or root)


def _load(folder: Path) -> Any:
    task = artifact.read_json(folder / "model.json", KIND, VERSION).get("task")
    return files.load(folder) if task == "hmm" else LanguageModel.load(folder)


def train(config: RunConfig | HMMRunConfig) -> tuple[Any, list[dict[str, Any]]]:
    """Run a config: the best model, and the lines of its metrics. `elman train` is a thin face on this.

    >>> import tempfile
    >>> config = RunConfig(model=ModelConfig(cell="markov", order=3), out=tempfile.mkdtemp() + "/run")
    >>> lm, history = train(config)
    >>> history[0]["valid"] < 2  # nats per character of English about Python
    True
    """
    _check(config)
    with ranks() as processes:
        if isinstance(config, HMMRunConfig):
            _fit(config, processes)
        else:
            _train(config, processes)
    return load(config.out), read_metrics(Path(config.out))


def _check(config: RunConfig | HMMRunConfig) -> None:
    if config.task not in TASKS:
        raise UnknownNameError("task", config.task, TASKS)
    if not isinstance(config, CONFIGS[config.task]):
        wanted = CONFIGS[config.task].__name__
        raise InputError(f"the task {config.task} needs a {wanted}, not a {type(config).__name__}")
    if config.resume not in ("never", "auto"):
        raise UnknownNameError("way to resume", config.resume, ("never", "auto"))
    if not 0 <= config.seed < 2**62:  # Torch takes 64 bits, and each process adds a little
        raise InputError(f"seed is {config.seed}; it must be a whole number of at least 0 and below 2**62")
    if isinstance(config, RunConfig):
        loop.check(config.training)
        optim.check(config.optim)
        if config.training.tensorboard:
            summary_writer()


def _train(config: RunConfig, processes: Ranks) -> None:
    out = Path(config.out)
    if processes.world > 1 and "-" in config.data.names:
        raise InputError("standard input can be read by one process only; give several a file")
    last = _last(out, config)
    vocabulary = LanguageModel.load(last).vocabulary if last else None
    splits = open_splits(config.data, vocabulary)
    lm = _language_model(config, splits, last)
    stored = checkpoint.load(last, lm.model.init_state(0)) if last else None
    identity = _identity(config, splits)
    if stored:
        checkpoint.check_config(stored.config, identity, str(out))
    if isinstance(lm.model, Markov):
        if processes.world > 1:
            raise InputError(f"a Markov model is counted by one process; there are {processes.world}")
        _count(lm, splits, config, identity)
        return
    run = _build(config, lm, splits, stored, identity, processes)
    try:
        turn(run, config.training, config.optim)
        if processes.first:
            _test(load(out), splits, run.advance.step, run.recorder)
    except Interrupted as stop:
        stop.args = (f"{stop}; its checkpoint is in {out / 'last'}. To go on: elman train --out {out} --resume auto",)
        raise
    finally:
        run.recorder.close()


def _check_evaluation(config: RunConfig, splits: Splits) -> None:
    """Find out now what would else be found out at the first evaluation."""
    if splits.valid.tokens == 0:
        raise InputError("the validation text is empty; give data.valid, or a larger second part in data.split")
    try:
        splits.vocabulary.encode_known(config.training.sample_prompt)
    except InputError as error:
        raise InputError(f"training.sample_prompt cannot be used: {error}") from error


def _fit(config: HMMRunConfig, processes: Ranks) -> None:
    """A hidden Markov model is fitted in one go: what was killed is begun again, and comes to the same end."""
    if processes.world > 1:
        raise InputError(f"a hidden Markov model is fitted by one process; there are {processes.world}")
    out = Path(config.out)
    _last(out, config)
    if artifact.find(out / "best"):
        checkpoint.check_config(_stored(out), _same(config), str(out))
        return
    model = hidden_markov.build(config.model, config.seed)
    reader, observed, valid = open_observations(config.data)
    if reader.read != "columns":
        _read_symbols(model, reader, config)
    with _reserved(out):
        model.set_params(verbose=True).fit(observed.X, observed.lengths).set_params(verbose=False)
    model.reader_ = reader
    begin(out, config)
    recorder = Recorder(out)
    for step, log_likelihood in enumerate(model.history_):
        recorder.metrics(step, log_likelihood=log_likelihood, train=-log_likelihood / len(observed.X))
    if valid:
        recorder.metrics(step, valid=-model.score(valid.X, valid.lengths) / len(valid.X))
    recorder.sample(step, reader.text(model.sample(200, random_state=config.seed)[0]))
    recorder.close()
    files.save(model, out / "best")


@contextmanager
def _reserved(out: Path) -> Iterator[None]:
    """Make a folder, so that one that cannot be made is found out before the work; a failure leaves none behind."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make the run directory {out}: {error}; choose another --out") from error
    try:
        yield
    except BaseException:
        with suppress(OSError):  # it was there, with something in it
            out.rmdir()
        raise


def _read_symbols(model: HiddenMarkovEstimator, reader: Reader, config: HMMRunConfig) -> None:
    if config.model.emission != "categorical":
        raise InputError(
            f"data.read is {reader.read}, which gives symbols; a {config.model.emission} emission needs numbers. "
            "Use --model.emission categorical, or --data.read columns."
        )
    model.set_params(n_features=len(reader.names))


def _same(config: HMMRunConfig) -> dict[str, Any]:
    return {name: value for name, value in asdict(config).items() if name not in ("out", "resume")}


def _stored(out: Path) -> dict[str, Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        stored = YAML(typ="safe").load(out / "config.yaml")
        return {name: value for name, value in stored.items() if name not in ("out", "resume")}
    except (OSError, YAMLError, AttributeError) as error:
        raise FileError(f"{out / 'config.yaml'} cannot be read: {error}; choose another --out") from error


def _last(out: Path, config: RunConfig | HMMRunConfig) -> Path | None:
    """The checkpoint to go on from, if there is one and that is wanted."""
    last = checkpoint.latest(out) if config.resume == "auto" else None
    ours = config.resume == "auto" and (out / "config.yaml").exists()
    if last is None and not ours and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(
            f"{out} exists; a run is never overwritten. Choose another --out, or continue it with --resume auto."
        )
    return last


def _language_model(config: RunConfig, splits: Splits, last: Path | None) -> LanguageModel:
    torch.manual_seed(config.seed)
    if last:
        lm = LanguageModel.load(last)
        lm.model.train()
    else:
        lm = LanguageModel(
            build(config.model, splits.vocabulary.size), splits.vocabulary, config.model, config.data.unit
        )
    lm.model.to(_device(config.device))
    return lm


def _device(name: str) -> torch.device:
    if name not in ("auto", "cpu", "cuda"):
        raise UnknownNameError("device", name, ("auto", "cpu", "cuda"))
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device is cuda, but there is none; use --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def _identity(config: RunConfig, splits: Splits) -> dict[str, Any]:
    """What must be the same for a run to be the same: everything but where it is, and the names of the texts."""
    identity = asdict(config)
    for name in ("out", "resume", "device"):
        del identity[name]
    for name in ("train", "valid", "test"):
        identity["data"][name] = getattr(splits, name).name
    return identity


def _build(
    config: RunConfig,
    lm: LanguageModel,
    splits: Splits,
    stored: Checkpoint | None,
    identity: dict[str, Any],
    processes: Ranks,
) -> Run:
    data = config.data
    streams = Streams(splits.train, data.batch_size, data.window, config.seed, processes.rank, processes.world)
    _check_evaluation(config, splits)
    optimiser, schedule = optim.optimiser(config.optim, lm.model), Schedule(config.optim, config.training.steps)
    unit = processes.wrap(Unit(lm.model))
    torch.manual_seed(config.seed + 1 + processes.rank)
    state, advance, lengths = lm.model.init_state(len(streams.rows)), Advance(), None
    if stored:
        state, advance, lengths = (
            checkpoint.resume(stored, optimiser, schedule, processes),
            stored.advance,
            stored.lengths,
        )
    out = Path(config.out)
    if processes.first and not stored:
        begin(out, config)
    recorder = Recorder(out if processes.first else None, lengths, config.training.tensorboard, advance.step)

    def save(name: str, run: Run) -> None:
        if name == "best":
            if processes.first:
                lm.save(out / name)
            return
        lengths = recorder.flush()
        checkpoint.save(out / name, lm.fill, run.advance, schedule, optimiser, run.state, lengths, identity, processes)

    def evaluate(step: int) -> dict[str, float]:
        numbers = [0.0, 0.0]
        if processes.first:
            score = lm.evaluate(splits.valid)
            numbers = [score.nats_per_token, score.bits_per_character]
            _sample(lm, config, step, recorder)
        valid, bits = processes.from_first(*numbers)
        return {"valid": valid, "bits_per_character": bits}

    characters = splits.train.characters / splits.train.tokens
    return Run(unit, streams, optimiser, schedule, state, advance, recorder, processes, evaluate, save, characters)


def _test(lm: LanguageModel, splits: Splits, step: int, recorder: Recorder) -> None:
    """The best model on the text that nothing was chosen by."""
    if splits.test.tokens:
        score = lm.evaluate(splits.test)
        recorder.metrics(step, test=score.nats_per_token, bits_per_character=score.bits_per_character)


def _sample(lm: LanguageModel, config: RunConfig, step: int, recorder: Recorder) -> None:
    prompt, tokens = config.training.sample_prompt, config.training.sample_tokens
    if tokens:
        text = lm.generate(prompt, max_new_tokens=tokens, temperature=0.8, seed=config.seed + step)
        lm.model.train()
        recorder.sample(step, prompt + text)


def _count(lm: LanguageModel, splits: Splits, config: RunConfig, identity: dict[str, Any]) -> None:
    """The Markov model is fitted in one go: what was killed is begun again, and comes to the same end."""
    out = Path(config.out)
    if best := artifact.find(out / "best"):
        checkpoint.check_config(checkpoint.read_config(best), identity, str(out))
        return
    _check_evaluation(config, splits)
    lm.model.fit(splits.train.ids)
    score = lm.evaluate(splits.valid)
    begin(out, config)
    recorder = Recorder(out)
    recorder.metrics(
        1, tokens=splits.train.tokens, valid=score.nats_per_token, bits_per_character=score.bits_per_character
    )
    _sample(lm, config, 1, recorder)
    _test(lm, splits, 1, recorder)
    recorder.close()

    def fill(folder: Path) -> None:
        lm.fill(folder)
        checkpoint.write_config(folder, identity)

    artifact.write(out / "best", fill)
