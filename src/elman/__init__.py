"""Recurrent sequence models whose state you own.

A name is imported when it is first used: `elman --help` must not wait for Torch. `__init__.pyi` tells type checkers and
editors what is listed here.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"  # the one place that says it

_MODULES = (
    "cells", "compose", "data", "decoding", "errors", "export", "hmm", "images", "kernels", "laws", "lens",
    "online", "onnx", "state", "tasks", "trees",
)  # fmt: skip

_NAMES = {
    "elman.cells": (
        "CELLS", "GLA", "GRU", "HGRN2", "HMM", "KDA", "LRU", "LSTM", "MGU", "MLSTM", "RGLRU", "RWKV7", "S4D", "S5",
        "SLSTM", "DeepTransition", "DeltaNet", "Elman", "GatedDeltaNet", "IndRNN", "Jordan", "Mamba", "Mamba2",
        "Mamba3", "MinGRU", "MinLSTM", "Rate", "RetNet", "Window", "cell",
    ),
    "elman.compose": (
        "GLU", "Bidirectional", "Columns", "Dense", "Dropout", "Lags", "LearnedStart", "Norm", "Parallel", "Pool",
        "Recompute", "Residual", "Reverse", "Scale", "Stack", "WeightDrop", "Zoneout", "blocks", "save_bfloat16",
        "stack",
    ),
    "elman.convert": ("from_torch", "state_from_torch", "state_to_torch", "to_torch"),
    "elman.core": ("Core",),
    "elman.errors": ("ElmanError",),
    "elman.run.estimators": ("SequenceClassifier", "SequenceRegressor", "SequenceTagger", "SeriesForecaster"),
    "elman.hmm": ("GMMHMM", "BernoulliHMM", "CategoricalHMM", "GaussianHMM", "PoissonHMM"),
    "elman.model": ("SequenceModel",),
    "elman.nn.crf": ("CRF", "LinearChain"),
    "elman.nn.distributions": (
        "AdaptiveCategorical", "Bernoulli", "Categorical", "Distribution", "Gaussian", "NegativeBinomial", "Poisson",
        "QuantileGrid", "StudentT",
    ),
    "elman.nn.embed": ("Embedding",),
    "elman.nn.readout": (
        "AdaptiveSoftmax", "BernoulliReadout", "BothEnds", "GaussianReadout", "NegativeBinomialReadout",
        "PoissonReadout", "Pooled", "QuantileReadout", "Softmax", "StudentTReadout",
    ),
    "elman.run": ("train",),
    "elman.stream": ("Stream",),
    "elman.tasks": ("inspect", "load"),
    "elman.tasks.classify.model": ("Classifier", "ClassifyModelConfig"),
    "elman.tasks.classify.task": ("ClassifyConfig", "ClassifyDataConfig", "LossConfig"),
    "elman.tasks.forecast.config": (
        "ForecastConfig", "ForecastDataConfig", "ForecastModelConfig", "ForecastOptim", "ForecastTraining",
    ),
    "elman.tasks.forecast.model": ("Forecaster",),
    "elman.tasks.hmm.data": ("HMMDataConfig",),
    "elman.tasks.hmm.task": ("HMMConfig", "HMMModelConfig"),
    "elman.tasks.image.model": ("ImageModelConfig", "Painter"),
    "elman.tasks.image.task": ("ImageConfig", "ImageDataConfig"),
    "elman.tasks.tag.model": ("TagModelConfig", "Tagger"),
    "elman.tasks.tag.task": ("TagConfig", "TagDataConfig"),
    "elman.tasks.text.data": ("TextDataConfig",),
    "elman.tasks.text.lm": ("LMConfig", "LMModelConfig", "LanguageModel"),
    "elman.tasks.text.markov": ("MarkovConfig", "MarkovModel", "MarkovModelConfig"),
    "elman.tasks.text.pretrained.convert": ("from_pretrained",),
    "elman.tasks.text.task": ("PreviewConfig",),
    "elman.tasks.translate.model": ("TranslateModelConfig", "Translator"),
    "elman.tasks.translate.task": ("DecodingConfig", "SamplingConfig", "TranslateConfig", "TranslateDataConfig"),
    "elman.tasks.tree.model": ("TreeLabeller", "TreeModelConfig"),
    "elman.tasks.tree.task": ("TreeConfig", "TreeDataConfig"),
    "elman.training.loop": ("TrainingConfig",),
    "elman.training.optim": ("OptimConfig",),
    "elman.run.search": ("search",),
}  # fmt: skip

_HOMES = {name: home for home, names in _NAMES.items() for name in names}

__all__ = sorted([*_MODULES, *_HOMES])


def __getattr__(name: str) -> object:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif name in _MODULES:
        value = import_module(f"elman.{name}")
    else:
        raise AttributeError(f"module 'elman' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
