"""What users hold: frames, series, masked arrays, labels, arrays laid out in every way."""

from typing import Any

import numpy as np
import pytest

from elman.errors import InputError
from elman.hmm import CategoricalHMM, GaussianHMM, PoissonHMM, load, save
from elman.tasks.hmm import sequences

X = np.random.default_rng(0).normal(4.0 * ((np.arange(200) // 20) % 2)[:, None], 1.0, (200, 2))
MODEL = GaussianHMM(2, random_state=0).fit(X)


@pytest.mark.parametrize(
    "same",
    [
        X[::-1][::-1], np.asfortranarray(X), X.astype(">f8"), X.astype(object), X.tolist(), np.ma.masked_array(X),
        X[:, ::-1][:, ::-1],
    ],
)  # fmt: skip
def test_every_layout_of_an_array_gives_the_same(same: Any) -> None:
    assert MODEL.score(same) == MODEL.score(X)
    np.testing.assert_array_equal(GaussianHMM(2, random_state=0).fit(same).means_, MODEL.means_)


def test_a_masked_array_keeps_its_mask() -> None:
    hidden = np.random.default_rng(1).random(X.shape) < 0.3
    spoilt = np.where(hidden, 1e6, X)
    assert MODEL.score(np.ma.masked_array(spoilt, mask=hidden)) == MODEL.score(np.where(hidden, np.nan, X))
    counts = np.ma.masked_array([[3], [999], [4]], mask=[[0], [1], [0]])
    np.testing.assert_array_equal(sequences.read_values(counts).values, [[3], [np.nan], [4]])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([[1.0], [1.0, 2.0]], r"np\.concatenate\(parts\), lengths"),
        (np.array([["2020-01-01"]], dtype="datetime64[D]"), "datetime64"),
        (np.array([[1j]]), "Complex"),
        (np.array([[{"a": 1}]], dtype=object), "objects"),
        (np.array([["a"], [1.0]], dtype=object), "objects"),
        ([["a"], ["b"]], "holds text"),
        (np.zeros((0, 2)), "empty"),
        (np.zeros((2, 0)), "0 feature"),
        ([], "shape"),
        (5.0, "shape"),
    ],
)
def test_what_is_not_numbers_is_refused(given: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        GaussianHMM(2).fit(given)
    with pytest.raises(InputError):
        MODEL.predict(given)


# Labels

WEATHER = [["sun"], ["rain"], ["rain"], ["sun"], ["snow"], ["sun"], ["rain"], ["sun"]]


def test_labels_are_symbols() -> None:
    model = CategoricalHMM(2, random_state=0, tol=0.1).fit(WEATHER)
    numbers = [[["rain", "snow", "sun"].index(cell)] for (cell,) in WEATHER]
    again = CategoricalHMM(2, random_state=0, tol=0.1).fit(numbers)
    np.testing.assert_array_equal(model.emissionprob_, again.emissionprob_)
    assert model.symbols_ == ["rain", "snow", "sun"] and model.score(WEATHER) == again.score(numbers)
    drawn = model.sample(20, random_state=0)[0]
    assert set(drawn.ravel()) <= set(model.symbols_) and drawn.shape == (20, 1)
    assert model.score([["sun"], [None]]) == again.score([[2], [np.nan]])
    with pytest.raises(InputError, match=r"'fog', which this model was not fitted to; it knows 'rain', 'snow', 'sun'"):
        model.predict([["fog"]])
    assert any("'snow'" in cell for table in model.describe() for row in table.rows for cell in row)


def test_labels_are_saved(tmp_path: Any) -> None:
    model = CategoricalHMM(2, random_state=0, tol=0.1).fit(WEATHER)
    save(model, tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(WEATHER), model.predict(WEATHER))


# pandas

pd = pytest.importorskip("pandas")


def test_a_frame_and_its_names(tmp_path: Any) -> None:
    frame = pd.DataFrame(X, columns=["x", "y"])
    model = GaussianHMM(2, random_state=0).fit(frame)
    assert model.feature_names_in_.tolist() == ["x", "y"] and model.score(frame) == MODEL.score(X)
    save(model, tmp_path / "model")
    for m in (model, load(tmp_path / "model")):
        with pytest.raises(InputError, match="X has y, x; the model was fitted to x, y, in this order"):
            m.score(frame[["y", "x"]])
        with pytest.raises(InputError, match="feature names"):
            m.predict(frame.rename(columns={"x": "z"}))
        assert m.score(frame[["y", "x"]][list(m.feature_names_in_)]) == MODEL.score(X)
        with pytest.warns(UserWarning, match="columns are taken to be x, y"):
            m.score(X)
    assert [table.header for table in model.describe()][1] == ["", "x", "y"]
    assert not hasattr(model.fit(X), "feature_names_in_")


def test_a_saved_model_of_a_frame_finds_its_columns_in_a_file(tmp_path: Any) -> None:
    frame = pd.DataFrame(X, columns=["x", "y"])
    model = GaussianHMM(2, random_state=0).fit(frame)
    frame[["y", "x"]].to_csv(tmp_path / "a.csv", index_label="day")
    found = model.reader_([str(tmp_path / "a.csv")], others=True)
    np.testing.assert_allclose(found.X, X)
    assert found.others[1] == {"day": "1"}


def test_series_and_nullable_types() -> None:
    counts = [1, 0, 9, None, 11, 10, 0, 1] * 3
    numbers = np.array([[np.nan if n is None else n] for n in counts])
    model = PoissonHMM(2, random_state=0).fit(numbers)
    for kind in ("Int64", "Float64", "object", float):
        series = pd.Series(counts, dtype=kind, name="n")
        assert model.score(series) == model.score(numbers) == model.score(series.to_frame())
    lengths = pd.Series([10, 14], dtype="Int64")
    assert model.score(numbers, lengths) == model.score(numbers, [10, 14])
    labels = pd.Series([cell for (cell,) in WEATHER])
    for kind in ("string", "category", object):
        fitted = CategoricalHMM(2, random_state=0, tol=0.1).fit(labels.astype(kind))
        assert fitted.symbols_ == ["rain", "snow", "sun"] and fitted.predict(labels).shape == (8,)
