"""What all estimators promise scikit-learn."""

import tempfile
from dataclasses import fields

import pytest
from sklearn.exceptions import NotFittedError
from sklearn.utils import estimator_checks

import elman

KINDS = {
    elman.SequenceClassifier: elman.ClassifyConfig,
    elman.SequenceRegressor: elman.ClassifyConfig,
    elman.SequenceTagger: elman.TagConfig,
    elman.SeriesForecaster: elman.ForecastConfig,
}
OWN = {"epochs", "learning_rate", "class_weight", "label_smoothing", "random_state", "verbose"}
CHECKS = [
    "check_estimator_cloneable", "check_estimator_repr", "check_get_params_invariance", "check_set_params",
    "check_no_attributes_set_in_init", "check_parameters_default_constructible", "check_valid_tag_types",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CHECKS)
def test_scikit_learn_checks(kind, name):
    getattr(estimator_checks, name)(kind.__name__, kind())


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_fitted_says_so(kind):
    with pytest.raises(NotFittedError, match=f"this {kind.__name__} is not fitted yet; call fit first"):
        kind().predict(3 if kind is elman.SeriesForecaster else [["a"]])


@pytest.mark.parametrize("kind", KINDS)
def test_options_are_settings_of_the_config(kind):
    config = KINDS[kind]()
    sections = [getattr(config, name) for name in ("data", "model", "optim", "training")]
    names = [part.name for section in sections for part in fields(section)]
    options = {*kind().get_params()} - OWN
    assert options <= {*names} and all(names.count(name) == 1 for name in options - {"patience"})


def test_a_fit_leaves_no_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    elman.SequenceTagger(size=4, epochs=1).fit([["a", "b"]] * 3, [["N", "V"]] * 3)
    assert not [path for path in tmp_path.iterdir() if "torch" not in path.name]
