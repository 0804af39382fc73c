"""A frame of pandas or polars is read as its CSV is, to the bit; what cannot be read is refused in one line."""

import datetime
import io
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

import elman
from elman import tasks
from elman.data.tables import columns_of, frame_of, values_of
from elman.errors import InputError, MissingExtraError
from elman.tasks.classify.data import Reader
from elman.tasks.forecast.data import PanelReader, fingerprint
from elman.tasks.tag.data import TagReader

KINDS = {"pandas": pd.DataFrame, "polars": pl.DataFrame}
every_kind = pytest.mark.parametrize("frame", KINDS.values(), ids=KINDS)
HOURS = [datetime.datetime(2024, 3, 30) + datetime.timedelta(hours=i) for i in range(72)]
SERIES = {
    "unique_id": ["b"] * 72 + ["a"] * 72,
    "ds": HOURS * 2,
    "y": [None if i == 7 else 0.1 * (i % 24) + i / 3 for i in range(144)],
    "kind": ["x"] * 72 + ["z"] * 72,
}
FORECAST = {
    "data": {"horizon": 4, "seasonality": 24, "window": 16, "batch_size": 2, "static": ["kind"]},
    "model": {"size": 4},
    "training": {"steps": 4, "evaluate_every": 2},
}


def csv_of(frame, path: Path) -> Path:
    if isinstance(frame, pd.DataFrame):
        frame.to_csv(path, index=False)
    else:
        frame.write_csv(path)
    return path


def same_weights(one, other) -> bool:
    pairs = zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    return all((a == b).all() for a, b in pairs)


# Each task from a frame and from its CSV


@every_kind
@pytest.mark.slow
def test_a_forecaster(frame, tmp_path):
    rows = frame(SERIES)
    ours, lines = elman.train(elman.ForecastConfig(**FORECAST), rows, progress=False)
    theirs, others = elman.train(elman.ForecastConfig(**FORECAST), csv_of(rows, tmp_path / "a.csv"), progress=False)
    assert same_weights(ours, theirs) and lines == others
    a, b = (model.forecast(model.state, 3, samples=5) for model in (ours, theirs))
    assert a.names == b.names and (a.paths == b.paths).all() and (a.quantiles == b.quantiles).all()


@every_kind
@pytest.mark.slow
def test_a_classifier(frame, tmp_path):
    rows = frame({"label": [1, 0] * 10, "text": ["a good day, yes", 'a "bad" day'] * 10, "n": range(20)})
    config = elman.ClassifyConfig(model={"size": 4}, training={"steps": 4, "evaluate_every": 2})
    ours, lines = elman.train(config, rows, progress=False)
    theirs, others = elman.train(config, csv_of(rows, tmp_path / "a.csv"), progress=False)
    assert same_weights(ours, theirs) and lines == others
    assert ours.labels.names == theirs.labels.names == ("0", "1")
    assert {*ours.predict(rows["text"])} <= {0, 1} and {*theirs.predict(rows["text"])} <= {"0", "1"}
    predicted, scored = ([*tasks.respond(m, "predict", data=rows)] for m in (ours, theirs)), [
        tasks.respond(ours, "evaluate", data=rows), tasks.respond(theirs, "evaluate", data=tmp_path / "a.csv"),
    ]  # fmt: skip
    assert next(predicted) == next(predicted) and scored[0] == scored[1]
    with pytest.raises(InputError, match=r'DataFrame was given.*respond\(classifier, "evaluate", data=\.\.\.\)'):
        ours.evaluate(rows)


@every_kind
@pytest.mark.slow
def test_a_tagger(frame, tmp_path):
    sentences = [(["Ada", "left", "Paris"], ["B-PER", "O", "B-LOC"]), (["Rain", "fell"], ["O", "O"])] * 10
    words = [(i, w, t) for i, (ws, ts) in enumerate(sentences) for w, t in zip(ws, ts, strict=True)]
    long = frame(dict(zip(("sentence", "word", "tag"), map(list, zip(*words, strict=True)), strict=True)))
    lists = frame({"tags": [ts for _, ts in sentences], "tokens": [ws for ws, _ in sentences]})
    text = "\n\n".join("\n".join(map(" ".join, zip(*pair, strict=True))) for pair in sentences)
    (tmp_path / "a.txt").write_text(text)
    config = elman.TagConfig(model={"size": 4}, training={"steps": 4, "evaluate_every": 2})
    models = [elman.train(config, data, progress=False) for data in (tmp_path / "a.txt", long, lists)]
    assert all(same_weights(models[0][0], other) for other, _ in models[1:])
    assert models[0][1] == models[1][1] == models[2][1]
    tagger = models[1][0]
    answers = [[*tasks.respond(tagger, "predict", data=data)] for data in (long.drop(columns="tag") if frame is
               pd.DataFrame else long.drop("tag"), lists, [ws for ws, _ in sentences])]  # fmt: skip
    assert answers[0] == answers[1] == answers[2]
    assert tasks.respond(tagger, "evaluate", data=long) == tasks.respond(tagger, "evaluate", data=tmp_path / "a.txt")


@every_kind
def test_a_hidden_markov_model(frame, tmp_path):
    random = np.random.default_rng(0)
    y = [*random.normal(0, 1, 40).tolist(), *random.normal(9, 1, 40).tolist()]
    rows = frame({"day": HOURS[:40] * 2, "x": y, "z": [None, *range(79)]})
    config = elman.HMMConfig(data={"columns": ["x", "z"]})
    ours, lines = elman.train(config, rows, progress=False)
    theirs, others = elman.train(config, csv_of(rows, tmp_path / "a.csv"), progress=False)
    assert lines == others and ours.fingerprint == theirs.fingerprint
    columns = rows[["x", "z"]]
    array = np.array([y, [np.nan, *range(79)]]).T
    models = [elman.GaussianHMM(2, random_state=0).fit(X) for X in (columns, array)]
    assert (models[0].means_ == models[1].means_).all()
    assert (models[0].predict(columns) == models[1].predict(array)).all()


@every_kind
@pytest.mark.slow
def test_estimators_of_sequences(frame):
    numbers = np.random.default_rng(0).normal(size=(16, 5))
    table = frame({f"t{i}": column for i, column in enumerate(numbers.T)})
    y = frame({"y": numbers.sum(1), "label": ["p", "q"] * 8})
    for kind, name in ((elman.SequenceRegressor, "y"), (elman.SequenceClassifier, "label")):
        one, other = (kind(size=4, epochs=2, random_state=0).fit(X, y[name]) for X in (table, numbers))
        assert (one.predict(table) == other.predict(numbers)).all()
        assert one.score(table, y[name]) == other.score(numbers, y[name])
    series = elman.SequenceRegressor(size=4, epochs=2, random_state=0).fit([table, table], y["y"][:2])
    assert series.predict([table]).shape == (1,)
    X = frame({"words": [["he", "runs"], ["she", "sleeps"]] * 4, "tags": [["N", "V"]] * 8})
    tagger = elman.SequenceTagger(size=4, epochs=2, random_state=0).fit(X["words"], X["tags"])
    assert len(tagger.predict(X["words"])) == 8


# What is in columns


@every_kind
def test_series_in_a_column_of_lists(frame):
    rows = Reader().frame(frame({"text": [[1.0, 2.5], [3.0, 4.0]], "label": [["a", "b"], ["b"]]}))
    assert [row.input.tolist() for row in rows] == [[1, 2.5], [3, 4]] and rows[0].labels == ("a", "b")


@every_kind
def test_rows_in_any_order_with_names_of_any_type(frame):
    order = np.random.default_rng(0).permutation(144).tolist()
    rows = {**SERIES, "unique_id": [2] * 72 + [1] * 72}
    _, one = PanelReader().fit(frame(rows))
    _, other = PanelReader().fit(frame({name: [values[i] for i in order] for name, values in rows.items()}))
    assert {s.name for s in one} == {"1", "2"}
    assert fingerprint(sorted(one)[:1]) == fingerprint(sorted(other)[:1])
    named = {"1": one[1], "2": one[0]}
    assert all(np.array_equal(s.y, named[s.name].y, equal_nan=True) for s in other)


def test_categories_dates_zones_and_missing_values_are_as_in_a_csv():
    frame = pd.DataFrame(SERIES)
    odd = [
        frame.astype({"unique_id": "category", "kind": "category"}),
        frame.astype({"y": "Float64", "unique_id": "string"}),
        frame.set_index("ds"),
        frame.set_index(["unique_id", "ds"]),
        pl.DataFrame(SERIES, schema_overrides={"unique_id": pl.Categorical, "kind": pl.Enum(["x", "z"])}),
        pl.DataFrame(SERIES).with_columns(pl.col("ds").cast(pl.Datetime("ns"))),
        pl.DataFrame(SERIES).with_columns(pl.col("y").fill_null(float("nan"))),
    ]
    reader = PanelReader(static=("kind",))
    text = io.StringIO()
    frame.to_csv(text, index=False)
    wanted = fingerprint(reader.fit(pd.read_csv(io.StringIO(text.getvalue())))[1])
    assert [fingerprint(reader.fit(one)[1]) for one in odd] == [wanted] * len(odd)
    for zoned in (frame.assign(ds=frame.ds.dt.tz_localize("UTC")), pl.DataFrame(SERIES).with_columns(
        pl.col("ds").dt.replace_time_zone("UTC"))):  # fmt: skip
        found, series = reader.fit(zoned)
        assert found.frequency.zone == "+00:00" and found.frequency.stamps(np.array([series[0].start]))[0] == (
            "2024-03-30 00:00:00+00:00"
        )


@every_kind
def test_a_wide_frame_is_m4s(frame, tmp_path):
    rows = frame({"V1": ["H1", "H2"], "V2": [1.0, 7.5], "V3": [2.0, None], "V4": [None, None]})
    _, ours = PanelReader(format="wide").fit(rows)
    _, theirs = PanelReader(format="wide").fit(str(csv_of(rows, tmp_path / "a.csv")))
    assert fingerprint(ours) == fingerprint(theirs) and [len(one.y) for one in ours] == [2, 1]


@every_kind
def test_the_names_of_a_wide_frame_may_stand_in_any_column_and_its_values_in_order_only(frame):
    names, values = {"unique_id": ["7", "8"]}, {"V1": [1.0, 3.0], "V2": [2.0, 4.0]}
    for columns in ({**names, **values}, {**values, **names}):
        series = PanelReader(format="wide").fit(frame(columns))[1]
        assert [(one.name, one.y[:, 0].tolist()) for one in series] == [("7", [1.0, 2.0]), ("8", [3.0, 4.0])]
    days = {"name": ["a", "b"], "2025-01-31": [1.0, 3.0], "2025-02-01": [2.0, 4.0]}
    assert PanelReader(format="wide").fit(frame(days))[1][0].y[:, 0].tolist() == [1.0, 2.0]


@every_kind
@pytest.mark.parametrize(
    "columns, message",
    [
        ({"V1": [1.0, 3.0], "V2": [2.0, 4.0]}, "the first column, 'V1', has numbers alone"),
        ({"name": ["a"], "V10": [1.0], "V9": [2.0]}, "column 'V10' stands before 'V9'"),
        ({"name": ["a"], "2025-02-01": [1.0], "2025-01-31": [2.0]}, "column '2025-02-01' stands before '2025-01-31'"),
    ],
)
def test_wide_frames_that_are_refused(frame, columns, message):
    with pytest.raises(InputError, match=message):
        PanelReader(format="wide").fit(frame(columns))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda f: f.assign(unique_id=[None, *f.unique_id[1:]]), "row 0 of the data has no name of its series"),
        (lambda f: f.assign(unique_id=[np.nan, *range(143)]), "row 0 of the data has no name of its series"),
        (lambda f: f.assign(ds=[pd.NaT, *f.ds[1:]]), "series 'b' has the time ''"),
        (lambda f: f.assign(ds=[f.ds[1], *f.ds[1:]]), "series 'b' has the time 2024-03-30 01:00:00 twice"),
        (lambda f: f.assign(y=["many", *f.y[1:]]), "column 'y' has a value that is not a number"),
        (lambda f: f.rename(columns={"y": "z"}), "the data have no column 'y'"),
        (lambda f: f.rename_axis("ds"), "the column 'ds' twice"),
        (lambda f: f.rename(columns={"kind": "y"}), "the column 'y' twice"),
        (lambda f: f.set_index(f.ds.rename(None)).drop(columns="ds"), "the data have no column 'ds'"),
        (lambda f: f.assign(ds=f.ds + pd.Timedelta("500ms")), "with a fraction of a second"),
        (lambda f: pl.LazyFrame(SERIES), "collect a lazy one first"),
        (lambda f: f[:0], "there is no row in the data"),
    ],
)
def test_frames_of_series_that_are_refused(change, message):
    with pytest.raises(InputError, match=message) as caught:
        PanelReader().fit(change(pd.DataFrame(SERIES)))
    assert "\n" not in str(caught.value)


@every_kind
@pytest.mark.parametrize(
    "columns, message",
    [
        ({"words": ["a"], "label": ["x"]}, "the frame has no column 'text'; its header is 'words', 'label'"),
        ({"text": ["a", None], "label": ["x", "y"]}, "row 1 has (None|nan) in column 'text'; it must be a text"),
        ({"text": ["a", "b"], "label": ["x", None]}, "row 1 has no label in column 'label'"),
        ({"text": ["a", "b"]}, "row 0 has no label in column 'label'"),
        ({"text": [1, 2], "label": ["x", "y"]}, "row 0 has 1 in column 'text'"),
    ],
)
def test_frames_of_rows_with_labels_that_are_refused(frame, columns, message):
    with pytest.raises(InputError, match=message):
        Reader().frame(frame(columns))


@every_kind
@pytest.mark.parametrize(
    "columns, message",
    [
        ({"word": ["a", "b"], "tag": ["x", "y"]}, "the frame has 2 words, and nothing says where a sentence ends"),
        ({"sentence": [1, 2, 1], "word": [*"abc"], "tag": [*"xyz"]}, "sentence 1 stands in 2 places"),
        ({"sentence": [1, 1], "word": [*"ab"], "tag": ["x", None]}, "sentence 0 of the frame has a word or a tag that"),
        ({"sentence": [1, 1], "word": [*"ab"]}, "the frame has one column, word; there must be words and tags"),
        ({"tokens": [["a", "b"]], "tags": [["x"]]}, r"has lists of \[2, 1\] values; each word needs its own"),
        ({"tokens": [["a", "b"], None], "tags": [["x", "y"], ["z"]]}, "row 1 of the frame has None, where others"),
        (
            {"sentence": [1, 1], "word": [*"ab"], "pos": [*"NV"], "ner": [*"OO"]},
            "nothing says which are words and tags",
        ),
        ({"sentence": [1, 1], "kind": [*"NV"], "word": [*"ab"]}, "nothing says which are words and tags"),
    ],
)
def test_frames_of_sentences_that_are_refused(frame, columns, message):
    with pytest.raises(InputError, match=message):
        TagReader().frame(frame(columns))


@every_kind
def test_columns_of_words_and_tags_are_found_by_their_usual_names(frame):
    wanted = [(["a", "b"], ["N", "V"])]
    for columns in (
        {"tag": [*"NV"], "word": [*"ab"]},
        {"lemma": [*"xy"], "Word": [*"ab"], "label": [*"NV"], "number": [1, 2]},
        {"of a name": [*"ab"], "of another": [*"NV"]},
    ):
        found = TagReader().frame(frame({"sentence": [1, 1], **columns}))
        assert [(s.words, s.tags) for s in found] == wanted
    named = TagReader(word="lemma", tag=-1).frame(frame({"sentence": [1, 1], "lemma": [*"ab"], "kind": [*"NV"]}))
    assert [(s.words, s.tags) for s in named] == wanted


def test_rows_without_a_word_end_a_sentence_and_columns_have_names():
    frame = pl.DataFrame({"pos": ["N", None, "V", "N"], "ner": ["O", None, "B", "I"], "form": ["a", None, "b", "c"]})
    found = TagReader(word="form", tag="ner", features=("pos",)).frame(frame)
    assert [(s.words, s.tags, s.features) for s in found] == [
        (["a"], ["O"], [["N"]]), (["b", "c"], ["B", "I"], [["V", "N"]]),
    ]  # fmt: skip


# Forecasts as frames


@pytest.fixture(scope="module")
def forecasts():
    """A forecast from each kind of frame, with names that are numbers and times with a zone."""

    def forecast(rows):
        config = elman.ForecastConfig(data={"horizon": 2, "seasonality": 24}, model={"kind": "seasonal_naive"})
        model, _ = elman.train(config, rows, progress=False)
        return rows, model.forecast(model.state, samples=5)

    rows = {**SERIES, "unique_id": [2] * 72 + [1] * 72}
    zoned = pl.DataFrame(rows).with_columns(pl.col("ds").dt.replace_time_zone("UTC"))
    return {kind: forecast(rows) for kind, rows in {"polars": zoned, "pandas": zoned.to_pandas()}.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_forecast_is_a_frame_like_the_one_that_was_read(forecasts, kind):
    rows, forecast = forecasts[kind]
    made = forecast.to_frame(rows)
    assert type(made) is type(rows) and [*made.columns] == ["unique_id", "ds", "mean", "q0.1", "q0.5", "q0.9"]
    for name in ("unique_id", "ds"):
        assert made[name].dtype == rows[name].dtype
    values = values_of(made)
    assert values["unique_id"] == [2, 2, 1, 1] and values["ds"][0] - max(values_of(rows)["ds"]) == datetime.timedelta(
        hours=1
    )
    assert values["mean"] == forecast.mean.ravel().tolist() and values["q0.9"] == (
        forecast.quantiles[..., 2].ravel().tolist()
    )


def test_types_are_those_of_an_index_too(forecasts):
    rows, forecast = forecasts["pandas"]
    made = forecast.to_frame(rows.set_index(["unique_id", "ds"]))
    assert (made.unique_id.dtype, made.ds.dtype) == (rows.unique_id.dtype, rows.ds.dtype)


def test_a_forecast_without_a_frame_to_be_like(forecasts, monkeypatch):
    _, forecast = forecasts["polars"]
    made = forecast.to_frame("polars")
    assert made.schema["unique_id"] == pl.String and made.schema["ds"].time_zone == "UTC"
    assert columns_of(made)["mean"] == columns_of(forecast.to_frame())["mean"]
    with pytest.raises(InputError, match="like is 'arrow'; it must be one of 'pandas', 'polars'"):
        forecast.to_frame("arrow")
    for like, kind in ((3, "int"), (pl.DataFrame, "type")):
        with pytest.raises(InputError, match=f"like is a {kind}; it must be pandas, polars, or a frame"):
            forecast.to_frame(like)
    with pytest.raises(InputError, match="column 'unique_id' cannot have the type"):
        forecast._replace(names=["a", "b"]).to_frame(pl.DataFrame({"unique_id": [1]}))
    with pytest.raises(InputError, match="column 'unique_id' would lose values in the type category"):
        forecast.to_frame(pd.DataFrame({"unique_id": pd.Series(["other"], dtype="category")}))
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(MissingExtraError, match=r"needs polars, .* pip install 'elman\[frames\]'"):
        forecast.to_frame("polars")


@every_kind
def test_times_that_are_texts_or_numbers_stay_so(frame):
    for times in ([f"2024-01-{day:02d}" for day in range(1, 11)], [*range(10)]):
        rows = frame({"ds": times, "y": range(10)})
        model = elman.SeriesForecaster(2, seasonality=2, kind="seasonal_naive").fit(rows)
        made = values_of(model.forecast().to_frame(rows))["ds"]
        assert made == (["2024-01-11", "2024-01-12"] if isinstance(times[0], str) else [10, 11])


def test_several_targets_have_their_names_before_what_is_said():
    numbers = np.arange(2.0).reshape(1, 1, 2)
    forecast = elman.tasks.forecast.state.Forecast(
        ["a"], [["1"]], ["u", "v"], numbers, (0.5,), numbers[..., None] + 10, numbers, "series", "t"
    )
    wanted = {"series": ["a"], "t": [1], "u.mean": [0.0], "u.q0.5": [10.0], "v.mean": [1.0], "v.q0.5": [11.0]}
    assert values_of(forecast.to_frame("polars")) == values_of(forecast.to_frame("pandas")) == wanted
    assert [*forecast.lines()] == ["series,t,u.mean,u.q0.5,v.mean,v.q0.5\n", "a,1,0,10,1,11\n"]


def test_a_frame_of_columns():
    assert frame_of({"a": [1]}, "polars").rows() == [(1,)] and frame_of({"a": [1]}, "pandas").a.tolist() == [1]


def test_hours_of_a_day_do_not_become_one_date():
    like = pl.DataFrame({"ds": [datetime.date(2024, 1, 1)]})
    hours = [datetime.datetime(2024, 1, 1, hour) for hour in (0, 1)]
    with pytest.raises(InputError, match="column 'ds' would lose values in the type Date"):
        frame_of({"ds": hours}, like, ["ds"])
    assert frame_of({"ds": hours[:1]}, like, ["ds"])["ds"].to_list() == [datetime.date(2024, 1, 1)]


def test_a_series_of_pandas_is_read_by_its_times():
    """In another order it is the same series, and one with a gap is refused, as frames are."""
    series = pd.Series([float(day % 7) for day in range(28)], pd.date_range("2025-01-01", periods=28))

    def predict(y):
        return elman.SeriesForecaster(horizon=3, seasonality=7, kind="seasonal_naive").fit(y).predict().tolist()

    assert predict(series.sample(frac=1, random_state=0)) == predict(series) == predict(series.to_numpy())
    with pytest.raises(InputError):
        predict(series.drop(series.index[10]))
