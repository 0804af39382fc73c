"""Against scikit-learn, which nobody here wrote."""

import numpy as np
import pytest
import torch
from sklearn import metrics

from elman.tasks.classify import metrics as measures


@pytest.mark.parametrize("seed", range(3))
def test_of_classes(seed):
    make = torch.Generator().manual_seed(seed)
    log_p = torch.log_softmax(torch.randn(50, 4, generator=make, dtype=torch.float64), -1)
    y = torch.randint(0, 3, (50,), generator=make)  # the last class never occurs
    found, guess = measures.of_classes(log_p, y, list("abcd")).to_json(), log_p.argmax(-1)
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(y, guess))
    assert found["macro_f1"] == pytest.approx(metrics.f1_score(y, guess, average="macro"))
    assert found["log_loss"] == pytest.approx(metrics.log_loss(y, log_p.exp().numpy(), labels=range(4)))
    assert found["confusion"] == metrics.confusion_matrix(y, guess, labels=range(4)).tolist()


def test_of_several():
    make = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 3, generator=make, dtype=torch.float64)
    y = torch.randint(0, 2, (40, 3), generator=make).float()
    found, guess = measures.of_several(logits, y, list("abc")).to_json(), (logits > 0).int().numpy()
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(y.int().numpy(), guess))
    assert found["macro_f1"] == pytest.approx(metrics.f1_score(y.int().numpy(), guess, average="macro"))
    assert found["micro_f1"] == pytest.approx(metrics.f1_score(y.int().numpy(), guess, average="micro"))
    assert found["confusion"] == metrics.multilabel_confusion_matrix(y.int().numpy(), guess).tolist()
    each = [metrics.log_loss(y[:, k], logits[:, k].sigmoid().numpy()) for k in range(3)]
    assert found["log_loss"] == pytest.approx(sum(each))


def test_of_numbers():
    random = np.random.default_rng(0)
    y, mean = random.normal(size=30), random.normal(size=30)
    found = measures.of_numbers(*(torch.tensor(v) for v in (mean, np.full(30, 0.5), y))).to_json()
    assert found["mse"] == pytest.approx(metrics.mean_squared_error(y, mean))
    assert found["mae"] == pytest.approx(metrics.mean_absolute_error(y, mean))
    assert found["r2"] == pytest.approx(metrics.r2_score(y, mean)) and found["width"] == 0.5
