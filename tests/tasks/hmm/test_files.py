"""Models on the disk: what was saved comes back, to the bit; what is broken or foreign is refused in one sentence."""

import copy
import json
import warnings

import numpy as np
import pytest

import elman
from elman import hmm
from elman.errors import FileError, InputError
from elman.hmm import GMMHMM, BernoulliHMM, CategoricalHMM, FitWarning, GaussianHMM, PoissonHMM, left_to_right
from elman.tasks.hmm.data import Reader

RNG = np.random.default_rng(0)
CASES = [
    (CategoricalHMM(2, random_state=0, n_features=5), RNG.integers(0, 4, (60, 1))),
    (BernoulliHMM(2, random_state=0, emissionprob_prior=1.5), RNG.integers(0, 2, (60, 3))),
    (PoissonHMM(2, random_state=np.int64(0)), RNG.poisson(3, (60, 2))),
    (GaussianHMM(3, "tied", random_state=0, transmat_mask=left_to_right(3)), RNG.normal(size=(60, 2))),
    (GMMHMM(2, 2, "full", random_state=0, means_prior=np.ones(2), means_weight=0.5), RNG.normal(size=(60, 2))),
]


@pytest.fixture(params=CASES, ids=lambda case: type(case[0]).__name__)
def fitted(request):
    model, X = request.param
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        return model.set_params(n_iter=4).fit(X), X


def test_what_was_saved_comes_back(fitted, tmp_path):
    model, X = fitted
    model.reader_ = Reader(names=("x", "y"))
    hmm.save(model, tmp_path / "model")
    for again in (hmm.load(tmp_path / "model"), elman.load(tmp_path / "model")):
        assert type(again) is type(model)
        assert again.get_params().keys() == model.get_params().keys()
        assert all(np.array_equal(value, model.get_params()[name]) for name, value in again.get_params().items())
        assert again.score(X) == model.score(X)
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
        assert again.history_ == model.history_ and again.converged_ is model.converged_
        assert again.reader_ == model.reader_
        with pytest.raises(InputError, match=r"features|columns"):
            again.score(np.zeros((3, 7)))
    assert {path.suffix for path in (tmp_path / "model").iterdir()} == {".json", ".safetensors"}


def test_what_was_loaded_cannot_be_changed_and_a_copy_can(fitted, tmp_path):
    model, X = fitted
    model.save(tmp_path / "model")
    loaded = type(model).load(tmp_path / "model")
    for array in (value for value in vars(loaded).values() if isinstance(value, np.ndarray)):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    before = loaded.score(X)
    again = copy.deepcopy(loaded)
    again.transmat_[...] = 1 / len(again.transmat_)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        again.fit(X)
    assert loaded.score(X) == before == model.score(X)


def test_a_model_of_another_kind_is_refused(tmp_path):
    model = PoissonHMM(2, random_state=0).fit(RNG.poisson(3, (60, 2)))
    model.save(tmp_path / "model")
    with pytest.raises(FileError, match="holds a PoissonHMM, not a GaussianHMM"):
        GaussianHMM.load(tmp_path / "model")


def test_what_has_no_parameters_is_not_written(tmp_path):
    with pytest.raises(InputError, match="no parameters yet"):
        hmm.save(GaussianHMM(2), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_generator_of_numpy_is_not_written(tmp_path):
    model = PoissonHMM(2, random_state=np.random.RandomState(0)).fit(np.array([[1], [0], [9], [11]] * 5))
    hmm.save(model, tmp_path / "model")
    assert elman.load(tmp_path / "model").random_state is None


def broken(model, folder, how):
    hmm.save(model, folder)
    (folder / "checksums.json").unlink()  # they would notice first
    tensors, content = folder / "model.safetensors", folder / "model.json"
    described = json.loads(content.read_text())
    if how == "no tensors":
        tensors.unlink()
    elif how == "truncated tensors":
        tensors.write_bytes(tensors.read_bytes()[:-9])
    elif how == "truncated JSON":
        content.write_text(content.read_text()[:50])
    elif how == "foreign":
        content.write_text(json.dumps({**described, "format": "something"}))
    elif how == "newer":
        content.write_text(json.dumps({**described, "version": 99}))
    elif how == "unknown emission":
        content.write_text(json.dumps({**described, "emission": "weibull"}))
    elif how == "wrong size":
        content.write_text(json.dumps({**described, "options": {**described["options"], "n_components": 7}}))
    elif how == "no options":
        content.write_text(json.dumps({name: value for name, value in described.items() if name != "options"}))


@pytest.mark.parametrize(
    "how",
    [
        "no tensors", "truncated tensors", "truncated JSON", "foreign", "newer", "unknown emission", "wrong size",
        "no options",
    ],
)  # fmt: skip
def test_what_is_broken_is_refused(tmp_path, how):
    model = CASES[0][0].set_params(n_iter=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        broken(model.fit(CASES[0][1]), tmp_path / "model", how)
    with pytest.raises(FileError):
        elman.load(tmp_path / "model")
