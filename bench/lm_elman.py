"""Elman's language model as a user has it: the training loop's own step, and `generate`."""

from typing import Any

import numpy as np
import torch

from bench import lm_inputs
from bench.worker import Outputs, Run
from elman.tasks.text.lm import LanguageModelTask
from elman.tasks.text.windows import Streams
from elman.training.average import Average
from elman.training.loop import LoopState, _gradients, _update
from elman.training.loss import LossModule
from elman.training.optim import OptimConfig, Schedule, optimiser


def prepare(case: dict[str, Any]) -> tuple[Run, Outputs]:
    return _train(case) if case["mode"] == "train" else _generate(case)


def _train(case: dict[str, Any]) -> tuple[Run, Outputs]:
    model, config = lm_inputs.language_model(case["cell"]).model.train(), OptimConfig()
    streams = Streams(lm_inputs.text(), case["B"], case["T"])
    state = LoopState(
        LossModule(LanguageModelTask(), model),
        streams,
        optimiser(config, model),
        Schedule(config, 1000),
        Average(model),
    )

    def step() -> float:
        loss, count = _gradients(state, 1)
        _update(state, config, 1e-3, 1 / count)
        state.optimiser.step()
        return loss / count

    return step, lambda loss: {"loss": np.array([loss])}


def _generate(case: dict[str, Any]) -> tuple[Run, Outputs]:
    lm = lm_inputs.language_model(case["cell"])

    def outputs(_: Any) -> dict[str, Any]:
        state = lm.read([lm_inputs.PROMPT], lm.init_state())
        with torch.inference_mode():
            predicted, _core = lm.model.scan(torch.tensor([[int(state.token), lm_inputs.NEXT]]), state.core)
        log_probs = predicted.log_probs()[0].numpy()
        return {"log_probs": log_probs[0], "next_log_probs": log_probs[1]}

    return lambda: lm.generate(lm_inputs.PROMPT, max_new_tokens=lm_inputs.TOKENS), outputs
