import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import base, metrics, model_selection, pipeline, preprocessing, utils
from sklearn.exceptions import NotFittedError

import elman
from elman.errors import InputError

random = np.random.default_rng(0)
ROWS = [random.normal(size=(int(n), 2)) + (i % 2) for i, n in enumerate(random.integers(2, 9, 40))]
Y = np.array(["low", "high"])[np.arange(40) % 2]
PADDED = np.zeros((40, 8, 2))
LENGTHS = np.array([len(row) for row in ROWS])
for place, row in enumerate(ROWS):
    PADDED[place, : len(row)] = row


def classifier(**settings):
    return elman.SequenceClassifier(**{"size": 8, "epochs": 12, "random_state": 0, "batch_size": 8, **settings})


@pytest.fixture(scope="module")
def fitted():
    return classifier().fit(ROWS, Y)


def test_lists_and_padded_arrays_are_the_same(fitted):
    assert fitted.classes_.tolist() == ["high", "low"] and fitted.score(ROWS, Y) > 0.9
    other = classifier().fit(PADDED, Y, lengths=LENGTHS)
    p = fitted.predict_proba(ROWS)
    np.testing.assert_array_equal(p, other.predict_proba(PADDED, LENGTHS))
    np.testing.assert_allclose(p.sum(1), 1)
    np.testing.assert_array_equal(fitted.predict(ROWS), fitted.classes_[p.argmax(1)])
    assert fitted.score(ROWS, Y) == metrics.accuracy_score(Y, fitted.predict(ROWS))


def test_texts_and_labels_of_any_type():
    texts = ["good film", "bad film", "so good", "bad"] * 5
    model = elman.SequenceClassifier(size=8, epochs=20, random_state=0).fit(texts, [7, 3, 7, 3] * 5)
    assert model.predict(["good", "bad"]).tolist() == [7, 3]


def test_clones_grids_and_pipelines(fitted):
    copy = base.clone(fitted)
    assert copy.get_params() == fitted.get_params() and not hasattr(copy, "model_")
    assert base.is_classifier(fitted) and base.is_regressor(elman.SequenceRegressor())
    search = model_selection.GridSearchCV(classifier(), {"size": [2, 8]}, cv=2, error_score="raise")
    search.fit(PADDED, Y)
    assert search.best_score_ > 0.7 and set(search.cv_results_["param_size"]) == {2, 8}
    double = preprocessing.FunctionTransformer(lambda X: X * 2)
    piped = pipeline.make_pipeline(double, classifier()).fit(PADDED, Y)
    assert piped.score(PADDED, Y) > 0.7
    assert utils.get_tags(fitted).estimator_type == "classifier"
    assert "size=8" in repr(fitted) and "layers" not in repr(fitted)


def test_numbers_with_their_width():
    y = np.array([row[:, 0].mean() for row in ROWS])
    model = elman.SequenceRegressor(size=16, pool="mean", epochs=30, random_state=0, readout_dropout=0.0)
    model.fit(ROWS, y)
    found = model.predict(ROWS)
    assert model.score(ROWS, y) == pytest.approx(metrics.r2_score(y, found)) and model.score(ROWS, y) > 0.7
    assert (model.predict_std(ROWS) > 0).all()


def test_a_seed_is_a_fit_and_the_caller_keeps_his_random_numbers(fitted):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    again = classifier().fit(ROWS, Y)
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(again.predict_proba(ROWS), fitted.predict_proba(ROWS))


@pytest.mark.parametrize(
    "X, y, lengths, message",
    [
        (ROWS, Y[:-1], None, "each needs one label"),
        ([], [], None, "X is empty"),
        (PADDED, Y, LENGTHS[:3], "expected 40 whole numbers"),
        (PADDED, Y, LENGTHS + 1, "above what its row"),
        ([np.array([[np.nan, 1.0]]), *ROWS[1:]], Y, None, "row 0 of X has a missing"),
        ("a text", ["a"], None, "X is a string"),
        (pd.DataFrame({"text": ["a", "b"] * 2}), ["p", "q"] * 2, None, "X is a DataFrame, .* names of its columns"),
        ({"a": 1, "b": 2}, ["p", "q"], None, "X is a dict"),
        (["a", "b"] * 2, ["p", "p "] * 2, None, "'p' and 'p ' differ only in spaces"),
        (["a", "b", "c"] * 2, [0.0, 1.0, np.nan] * 2, None, "row 2 of y is nan, which is missing"),
        (["a", "b", "c"] * 2, ["p", "q", np.nan] * 2, None, "row 2 of y is nan, which is missing"),
        (["a", "b", "c"] * 2, pd.Series(["p", "q", None] * 2), None, "row 2 of y is (None|nan), which is missing"),
        (["a", "b", "c"] * 2, pd.Series([1, 2, None] * 2, dtype="Int64"), None, "row 2 of y is <NA>"),
    ],
)
def test_what_is_wrong_is_said(X, y, lengths, message):
    with pytest.raises(InputError, match=message):
        classifier().fit(X, y, lengths)


def test_a_model_that_is_not_fitted_says_so():
    with pytest.raises(InputError, match="not fitted"):
        classifier().predict_proba(ROWS)
    with pytest.raises(InputError, match="no parameter 'sizes'"):
        classifier().set_params(sizes=3)


@pytest.mark.parametrize(
    ("kind", "ask"),
    [
        ("SequenceClassifier", "predict"), ("SequenceClassifier", "predict_proba"), ("SequenceClassifier", "score"),
        ("SequenceRegressor", "predict"), ("SequenceRegressor", "predict_std"), ("SequenceRegressor", "score"),
    ],
)  # fmt: skip
def test_what_is_not_fitted_says_so_as_scikit_learn_does(kind, ask):
    with pytest.raises(NotFittedError, match=rf"this {kind} is not fitted yet; call fit first"):
        getattr(getattr(elman, kind)(), ask)(*((ROWS, [0.0] * 40) if ask == "score" else (ROWS,)))


def test_a_score_needs_a_label_for_each_row():
    """One label, or a column of them, would be compared with every row."""
    X, y = np.random.default_rng(0).normal(size=(12, 5, 2)), np.arange(12) % 2
    regressor = elman.SequenceRegressor(size=4, epochs=1, random_state=0).fit(X, y)
    classifier = elman.SequenceClassifier(size=4, epochs=1, random_state=0).fit(X, y)
    for model in (regressor, classifier):
        for wrong in (y[:, None], [0], y[:3], 0):
            with pytest.raises(InputError, match="y"):
                model.score(X, wrong)


@pytest.mark.parametrize(
    "labels",
    [
        [7, 3],
        ["low", "high"],
        [True, False],
        [0.5, -1.5],
        [10, 9, 2],
        np.array([2, 10], np.uint8),
        ["1", "02"],
        np.array([4, 5], object),
    ],
)
def test_the_model_inside_answers_with_the_same_labels(labels):
    y = np.array(labels)[np.arange(40) % len(labels)]
    model = classifier(epochs=4).fit(ROWS, y)
    found = model.predict(ROWS)
    assert found.dtype == y.dtype and type(found[0]) is type(y[0]) and {*found.tolist()} <= {*y.tolist()}
    assert model.model_.predict(ROWS) == found.tolist()
    assert {*model.model_.labels.answers} == {*model.classes_.tolist()}
    p = [{label: p for label, p in zip(model.classes_.tolist(), row, strict=True)} for row in model.predict_proba(ROWS)]
    assert [max(row, key=row.get) for row in p] == found.tolist()


@pytest.mark.parametrize("y", [np.array([1, "1"] * 20, dtype=object), [1, "a"] * 20])  # numpy makes texts of a list
def test_labels_of_several_types_are_refused(y):
    with pytest.raises(InputError, match="y has labels of several types, int and str"):
        classifier().fit(ROWS, y)


def test_texts_of_two_types_are_texts():
    assert classifier(epochs=1).fit(ROWS, [np.str_("low"), "high"] * 20).classes_.tolist() == ["high", "low"]


def test_lengths_do_not_cut_texts():
    with pytest.raises(InputError, match="X is texts, and lengths would cut their letters"):
        classifier().fit(["a fine film", "a dull film"] * 4, [1, 0] * 4, lengths=[3] * 8)


@pytest.mark.parametrize("weight", [{0: 1.0, 1: 2.0}, "equal", 2])
def test_class_weight_is_none_or_balanced(weight):
    with pytest.raises(InputError, match=r"class_weight is .*; it must be None or 'balanced'"):
        classifier(class_weight=weight).fit(ROWS, Y)


def test_a_regressor_refuses_classes():
    with pytest.raises(InputError, match=r"y is not numbers: .*'low'.*SequenceClassifier"):
        elman.SequenceRegressor(size=4).fit(ROWS, Y)


def test_options_reach_the_run(monkeypatch):
    configs = []

    def noted(config, data, **others):
        configs.append(config)
        return None, []

    monkeypatch.setattr("elman.run.estimators.trained.train", noted)
    options = {"class_weight": "balanced", "label_smoothing": 0.3, "epochs": 3, "batch_size": 4, "random_state": 7}
    elman.SequenceClassifier(**options, dropout=0.25, weight_decay=0.5, learning_rate=0.125).fit(
        ["a", "b"] * 5, [0, 1] * 5
    )
    (config,) = configs
    assert (config.loss.weights, config.loss.smoothing, config.seed) == ("balanced", 0.3, 7)
    assert config.training.steps == config.training.evaluate_every == 3 * 3  # ten rows are two batches and a half
    assert (config.data.batch_size, config.model.dropout) == (4, 0.25)
    assert (config.optim.lr, config.optim.weight_decay) == (0.125, 0.5)
