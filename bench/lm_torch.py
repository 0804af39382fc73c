"""The same language model in plain torch.nn, as one would write the loop for speed: time first, fused AdamW."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import elman
from bench import lm_inputs
from bench.worker import Outputs, Run
from elman.data import Position
from elman.tasks.text.windows import Streams


class Model(nn.Module):
    """Embedding, nn.GRU or nn.LSTM, linear read-out, with the weights of Elman's model."""

    def __init__(self, cell: str) -> None:
        super().__init__()
        source = lm_inputs.language_model(cell).model
        self.embed = nn.Embedding.from_pretrained(source.embed.weight.detach().clone(), freeze=False)
        self.rnn = elman.to_torch(source.core)
        self.rnn.batch_first = False
        self.readout = nn.Linear(256, self.embed.num_embeddings)
        self.readout.load_state_dict(source.readout.linear.state_dict())

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """x (T, B) symbols."""
        y, state = self.rnn(self.embed(x), state)
        return self.readout(y), state


def prepare(case: dict[str, Any]) -> tuple[Run, Outputs]:
    return _train(case) if case["mode"] == "train" else _generate(case)


def _train(case: dict[str, Any]) -> tuple[Run, Outputs]:
    model = Model(case["cell"])
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    streams = Streams(lm_inputs.text(), case["B"], case["T"])
    at, state = Position(), None

    def step() -> float:
        nonlocal at, state
        batch = streams.batch(at)
        at = streams.after(at)
        optimiser.zero_grad()
        logits, state = model(batch.x.T, state)
        loss = F.cross_entropy(logits.flatten(0, 1), batch.y.T.flatten())
        loss.backward()
        state = state.detach() if isinstance(state, Tensor) else tuple(part.detach() for part in state)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        return loss.item()

    return step, lambda loss: {"loss": np.array([loss])}


def _generate(case: dict[str, Any]) -> tuple[Run, Outputs]:
    model = Model(case["cell"]).eval()
    vocabulary = lm_inputs.language_model(case["cell"]).vocabulary
    prompt = torch.tensor([0, *vocabulary.encode(lm_inputs.PROMPT)])[:, None]

    @torch.inference_mode()
    def run() -> str:
        torch.set_num_threads(case["threads"])
        logits, state = model(prompt)
        symbols = []
        for _ in range(lm_inputs.TOKENS):
            token = torch.multinomial(logits[-1].softmax(-1), 1)
            symbols.append(token)
            logits, state = model(token, state)
        return vocabulary.decode(torch.cat(symbols)[:, 0].tolist())

    @torch.inference_mode()
    def outputs(_: Any) -> dict[str, Any]:
        logits, state = model(prompt)
        after = model(torch.tensor([[lm_inputs.NEXT]]), state)[0]
        each = {"log_probs": logits[-1, 0], "next_log_probs": after[-1, 0]}
        return {name: x.log_softmax(-1).numpy() for name, x in each.items()}

    return run, outputs
