"""Units that follow something that can be seen in the inputs."""

import pytest
import torch

from elman import lens
from elman.core import Core


@pytest.mark.slow
def test_a_unit_that_follows_quotes_is_found():
    class Quotes(Core):
        def init_state(self, batch_size):
            return torch.zeros(batch_size, 2)

        def step(self, x, state):
            quoted = torch.where(x[:, :1] > 0, 1 - state[:, :1], state[:, :1])
            state = torch.cat([quoted, torch.sin(x[:, 1:])], 1)
            return state, state

    torch.manual_seed(0)
    text = [['"' if torch.rand(()) < 0.2 else "a" for _ in range(60)] for _ in range(2)]
    marks = torch.tensor([[float(letter == '"') for letter in row] for row in text])
    report = lens.inspect(Quotes(2, 2), torch.stack([marks, torch.randn(2, 60)], -1), names=text)
    best = next(part for part in report.units if part.label == "inside quotes")
    assert best.units[0] == 0 and best.auc[0] == 1.0 and abs(best.auc[1] - 0.5) < 0.2


def test_auc_is_that_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    torch.manual_seed(0)
    values, where = torch.randint(0, 4, (1, 90, 3)).float(), torch.rand(1, 90) < 0.3
    [found] = lens.units("0", values, {"label": where.float()}, torch.ones(1, 90, dtype=torch.bool), best=3)
    for unit, auc in zip(found.units, found.auc, strict=True):
        assert auc == pytest.approx(metrics.roc_auc_score(where[0], values[0, :, unit]))
