"""What gluonts' PyTorch DeepAR does of `bench.forecasting`, in a process of its own (bench/worker.py).

training   a step of its network on one batch that is there: loss, gradients, clipping, Adam (fused, as ours; its own
           `fit` does not fuse)
loading    the same with its own loader making the batch, as `fit` does
sampling   its predictor over a dataset, 100 paths each
encoding   its predictor over a dataset, one path of one step each: what it takes to go on from new rows
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from gluonts.dataset.common import ListDataset
from gluonts.itertools import select
from gluonts.torch.model.deepar import DeepAREstimator
from torch import nn


def prepare(case: dict[str, Any], threads: int) -> tuple[Callable[[], Any], Callable[[Any], dict[str, Any]]]:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    made = {"training": _training, "loading": _training, "sampling": _predicting, "encoding": _predicting}
    return made[case["what"]](case), lambda result: {}


def _estimator(case: dict[str, Any]) -> Any:
    return DeepAREstimator(
        freq="h", prediction_length=case["horizon"], context_length=case["context"], num_layers=2,
        hidden_size=case["size"], lags_seq=case["lags"], batch_size=case["batch"], num_parallel_samples=case["samples"],
        num_batches_per_epoch=1_000_000,
    )  # fmt: skip


def _dataset(case: dict[str, Any]) -> ListDataset:
    g, rows = np.random.default_rng(0), case["rows"]
    wave = 10 + 3 * np.sin(np.arange(rows) * np.pi / 12)
    start = pd.Period("2024-01-01", "h")
    return ListDataset(
        [{"start": start, "target": wave + g.normal(size=rows)} for _ in range(case["series"])], freq="h"
    )


def _training(case: dict[str, Any]) -> Callable[[], Any]:
    estimator = _estimator(case)
    module = estimator.create_lightning_module()
    data = estimator.create_transformation().apply(_dataset(case), is_train=True)
    loader = iter(estimator.create_training_data_loader(data, module))
    optimiser = torch.optim.Adam(module.model.parameters(), lr=1e-3, weight_decay=1e-8, fused=True)
    module.train()
    held = next(loader)

    def step() -> None:
        batch = next(loader) if case["what"] == "loading" else held
        optimiser.zero_grad()
        module.model.loss(
            **select(module.inputs, batch), future_observed_values=batch["future_observed_values"],
            future_target=batch["future_target"],
        ).mean().backward()  # fmt: skip
        nn.utils.clip_grad_norm_(module.parameters(), 10.0)
        optimiser.step()

    return step


def _predicting(case: dict[str, Any]) -> Callable[[], Any]:
    estimator = _estimator(case)
    predictor = estimator.create_predictor(estimator.create_transformation(), estimator.create_lightning_module())
    data = _dataset(case)
    return lambda: len([forecast.mean for forecast in predictor.predict(data)])
