"""Hidden Markov models from configs, and the tables of fitted ones."""

import numpy as np
import pytest

from elman import hmm
from elman.errors import InputError, UnknownNameError
from elman.run import train
from elman.tasks import load
from elman.tasks.hmm.data import HMMDataConfig, Reader
from elman.tasks.hmm.parameters import stationary
from elman.tasks.hmm.task import HMMConfig, HMMModelConfig, build


def test_a_config_is_an_estimator():
    model = build(HMMModelConfig("mixture", 3, "left-to-right", options={"n_mix": 2}), seed=5)
    assert isinstance(model, hmm.GMMHMM) and model.n_mix == 2 and model.random_state == 5
    assert model.transmat_mask.sum() == 5 and model.startprob_mask.tolist() == [True, False, False]
    for parts in ({"emission": "gausian"}, {"structure": "ring"}, {"method": "newton"}):
        with pytest.raises(UnknownNameError):
            build(HMMModelConfig(**parts), 0)
    with pytest.raises(InputError, match="n_components is 0"):
        build(HMMModelConfig(n_components=0), 0)
    with pytest.raises(InputError, match="no parameter 'n_mixx'"):
        build(HMMModelConfig(options={"n_mixx": 2}), 0)


def test_stationary_is_a_fixed_point():
    transition = np.array([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.3, 0.3, 0.4]])
    p = stationary(np.array([0.0, 0.0, 1.0]), transition)
    np.testing.assert_allclose(p @ transition, p, atol=1e-9)
    np.testing.assert_allclose(p.sum(), 1, atol=1e-9)


def test_the_table_of_symbols_says_where_each_comes_from():
    model = hmm.CategoricalHMM(2)
    model.startprob_, model.transmat_ = np.array([0.5, 0.5]), np.array([[0.5, 0.5], [0.5, 0.5]])
    model.emissionprob_ = np.array([[0.1, 0.6, 0.3], [0.7, 0.1, 0.2]])
    model.reader_ = Reader("characters", ("a", "b", "c"))
    table = model.describe()[1]
    assert [row[:2] for row in table.rows] == [["'b'", "state 0"], ["'c'", "state 0"], ["'a'", "state 1"]]


@pytest.mark.parametrize("method", ["em", "adam"])
def test_a_run_finds_the_parameters(tmp_path, monkeypatch, method):
    monkeypatch.chdir(tmp_path)
    model = hmm.PoissonHMM(2)
    model.startprob_, model.transmat_ = np.array([1.0, 0.0]), np.array([[0.9, 0.1], [0.2, 0.8]])
    model.lambdas_ = np.array([[1.0], [9.0]])
    text = Reader(names=("n",)).text(model.sample(300, random_state=1)[0])
    (tmp_path / "n.csv").write_text(text)
    config = HMMConfig(
        data=HMMDataConfig(train="n.csv", valid="n.csv"),
        model=HMMModelConfig("poisson", method=method, n_iter=30, n_init=1, tol=1e-3, learning_rate=0.2),
        out="run",
    )
    fitted, history = train(config)
    assert sorted(fitted.lambdas_[:, 0]) == pytest.approx([1, 9], rel=0.15)
    assert history[-1]["valid"] == pytest.approx(history[-2]["train"])
    assert load("run").score([[1]]) == fitted.score([[1]])


def test_a_config_of_another_task_is_refused():
    with pytest.raises(
        InputError, match=r"needs a elman\.tasks\.text\.lm\.LMConfig, not a elman\.tasks\.hmm\.task\.HMMConfig"
    ):
        train(HMMConfig(task="lm"))
