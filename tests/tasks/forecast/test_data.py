"""Series from every kind of file are the same series."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.io import savemat

from elman.data import Position
from elman.errors import FileError, InputError
from elman.tasks.forecast.data import Panel, PanelReader, Series
from elman.tasks.forecast.inputs import PanelInputs, SeriesStreams

FRAME = pd.DataFrame(
    {
        "unique_id": ["a"] * 4 + ["b"] * 3,
        "ds": [*pd.date_range("2024-01-31", periods=4, freq="ME"), *pd.date_range("2024-02-29", periods=3, freq="ME")],
        "y": [1.0, np.nan, 3.0, 4.0, 10.0, 20.0, 30.0],
        "load": [5.0, 6.0, 7.0, 8.0, 1.0, np.nan, 3.0],
        "holiday": ["no", "yes", "no", "no", "yes", "no", "no"],
        "kind": ["x"] * 4 + ["z"] * 3,
    }
)
READER = PanelReader(static=("kind",), past=("load",), future=("holiday",))


def same(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        assert one.name == other.name and one.start == other.start
        for a, b in zip(one[2:], other[2:], strict=True):
            np.testing.assert_array_equal(a, b)


def test_csv_parquet_and_frames_are_the_same(tmp_path):
    reader, series = READER.fit(FRAME)
    assert str(reader.frequency) == "M" and [one.name for one in series] == ["a", "b"]
    np.testing.assert_array_equal(series[0].y[:, 0], [1, np.nan, 3, 4])
    np.testing.assert_array_equal(series[1].future[:, 1], [1, 0, 0])
    assert series[0].static.tolist() == [1, 0] and series[1].start == series[0].start + 1
    FRAME.sample(frac=1, random_state=0).to_parquet(tmp_path / "long.parquet")
    FRAME.to_csv(tmp_path / "long.csv", index=False)
    shuffled = FRAME.sample(frac=1, random_state=1).sort_values("unique_id", kind="stable")
    for given in (str(tmp_path / "long.csv"), [str(tmp_path / "long.csv")], shuffled, FRAME.to_dict("list")):
        same(READER.fit(given)[1], series)
    found = {one.name: one for one in reader(str(tmp_path / "long.parquet"))}
    same([found["a"], found["b"]], series)


def test_wide_and_array_files(tmp_path):
    (tmp_path / "wide.csv").write_text('"V1","V2","V3","V4"\n"H1","1","2.5","3"\n"H2","7","",""\n')
    _, (one, two) = PanelReader().fit(str(tmp_path / "wide.csv"))
    assert one.y[:, 0].tolist() == [1, 2.5, 3] and two.y[:, 0].tolist() == [7] and two.name == "H2"
    g = np.random.default_rng(0)
    rows = [g.integers(0, 2, (n, 3)).astype(float) for n in (4, 2)]
    cells = np.empty((1, 2), object)
    cells[0] = rows
    savemat(tmp_path / "music.mat", {"train": cells, "other": cells[:, :1]})
    padded = np.zeros((2, 4, 3))
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    np.savez(tmp_path / "music.npz", x=padded, lengths=[4, 2])
    for name in ("music.mat:train", "music.npz"):
        reader, found = PanelReader().fit(str(tmp_path / name))
        assert reader.format == "arrays" and len(reader.target) == 3
        for one, row in zip(found, rows, strict=True):
            np.testing.assert_array_equal(one.y, row)
    with pytest.raises(InputError, match="has the arrays train, other"):
        PanelReader().fit(str(tmp_path / "music.mat"))
    (tmp_path / "broken.npz").write_bytes(b"PK")
    with pytest.raises(FileError, match="cannot read"):
        PanelReader().fit(str(tmp_path / "broken.npz"))


def test_gaps_are_filled_where_that_is_asked():
    frame = {"unique_id": ["a"] * 4, "ds": ["1", "2", "5", "6"], "y": [1.0, 2.0, 5.0, 6.0]}
    with pytest.raises(InputError, match=r"no row for 3 .*--data.gaps fill"):
        PanelReader().fit(frame)
    _, (one,) = PanelReader(gaps="fill").fit(frame)
    np.testing.assert_array_equal(one.y[:, 0], [1, 2, np.nan, np.nan, 5, 6])


def test_a_panel_is_its_series():
    rows = {"unique_id": ["b", "a", "b", "a", "c"], "ds": ["4", "1", "2", "5", "9"], "y": [4.0, 1.0, 2.0, 5.0, 9.0]}
    _, panel = PanelReader(gaps="fill").fit(rows, "1")  # both have gaps, at other places
    assert [(one.name, one.start) for one in panel] == [("b", 2), ("a", 1), ("c", 9)]
    np.testing.assert_array_equal(panel.y[:, 0], [2, np.nan, 4, 1, np.nan, np.nan, np.nan, 5, 9])
    same([panel[-1], *panel[:2]], [panel[2], panel[0], panel[1]])
    same(Panel.of([*panel]), panel)
    same(panel.take(np.array([2, 0])), [panel[2], panel[0]])
    np.testing.assert_array_equal(
        panel.padded(panel.y, 0.0)[..., 0], [[2, np.nan, 4, 0, 0], [1, np.nan, np.nan, np.nan, 5], [9, 0, 0, 0, 0]]
    )
    with pytest.raises(IndexError):
        panel[3]
    with pytest.raises(InputError, match=r"series 'a' has an infinite value at row 1 of its times"):
        PanelReader().fit({"unique_id": ["b", "a", "a"], "ds": ["1", "1", "2"], "y": [1.0, 1.0, np.inf]}, "1")


def test_rows_that_are_filled_in_are_counted_over_all_series():
    """Three are missing between the rows of each, and three before them."""
    reader, _ = PanelReader(gaps="fill").fit({"unique_id": ["a", "a"], "ds": ["1", "2"], "y": [1.0, 2.0]})
    frame = {"unique_id": ["a", "a", "b", "b"], "ds": ["6", "10"] * 2, "y": [1.0] * 4}
    series = reader(frame, filled=6)
    assert [len(one.y) for one in reader.after(series, [one.start - 4 for one in series], 6)] == [8, 8]
    for call in (lambda: reader(frame, filled=5), lambda: reader.after(series, [one.start - 4 for one in series], 5)):
        with pytest.raises(InputError, match=r"3 rows missing before .* 5 at most are filled in, in all series"):
            call()


def test_covariates_that_do_not_fit_are_named():
    with pytest.raises(InputError, match="several values of a static covariate"):
        PanelReader(static=("load",)).fit(FRAME)
    reader, _ = READER.fit(FRAME)
    with pytest.raises(InputError, match="category 'maybe'"):
        reader(FRAME.assign(holiday="maybe"))
    with pytest.raises(InputError, match="has no value at all"):
        READER.fit(FRAME.assign(load=np.nan))


def inputs(reader, names=("a", "b")):
    return PanelInputs(reader, names, calendar=True, numbered=True)


def test_a_row_has_what_is_known_before_its_value():
    reader, (one, two) = READER.fit(FRAME)
    found = inputs(reader).rows(one)
    np.testing.assert_array_equal(found.x[:, 0], [0, 1, 1, 3])  # the value before, the last seen where it is missing
    np.testing.assert_array_equal(found.x[:, 1], [0, 1, 0, 1])  # whether it was seen
    np.testing.assert_array_equal(found.x[:, 3], [0, 1, 1, 1])  # past covariates of the row before
    np.testing.assert_array_equal(found.x[:, 5], [0, 1, 0, 0])  # a holiday is known in its own row
    np.testing.assert_array_equal(found.counted[:, 0], [True, False, True, True])
    assert (found.x[:, -1] == 1).all() and (inputs(reader).rows(two).x[:, -1] == 2).all()
    assert inputs(reader).others + 2 + 1 == found.x.shape[1]
    first, second = inputs(reader).rows(one.cut(0, 2)), None
    second = inputs(reader).rows(one.cut(2), first.tail)
    np.testing.assert_array_equal(np.concatenate([first.x, second.x]), found.x)


def test_a_future_covariate_that_is_missing_is_named_with_its_time():
    reader, (one, _) = READER.fit(FRAME)
    with pytest.raises(InputError, match="no value of holiday at 2024-03-31"):
        inputs(reader).rows(one._replace(future=np.where(np.arange(4)[:, None] >= 2, np.nan, one.future)))


def streams(series, **options):
    reader = PanelReader(past=("load",)).fit(FRAME)[0] if series[0].past.shape[1] else PanelReader().fit(FRAME)[0]
    return SeriesStreams(PanelInputs(reader, ("a", "b"), calendar=False), series, 3, 5, 0, **options)


def made(lengths, past=0):
    return [
        Series(str(i), 0, 1.0 + np.arange(n)[:, None] + 100 * i, np.ones((n, past)), np.zeros((n, 0)), np.zeros(0))
        for i, n in enumerate(lengths)
    ]


def a_pass(data, epoch=1):
    at, batches = Position(epoch), []
    while at.epoch == epoch:
        batches.append(data.batch(at))
        at = data.after(at)
    return batches


@pytest.mark.parametrize(("segment", "warmup"), [(0, 0), (7, 3), (4, 100)])
def test_a_pass_has_every_value_once(segment, warmup):
    lengths = [12, 1, 30, 8, 17]
    data = streams(made(lengths), segment=segment, warmup=warmup)
    batches = a_pass(data)
    values = torch.cat([batch.y[0][batch.y[1]] for batch in batches])
    wanted = torch.cat([torch.from_numpy(one.y[:, 0]) for one in made(lengths)]).float()
    assert torch.equal(values.sort().values, wanted.sort().values)
    for lane in range(3):  # in its order, a new piece wherever it does not follow
        x = torch.cat([b.x[lane, : b.lengths[lane]] for b in batches])[:, 0]
        y = torch.cat([b.y[0][lane, : b.lengths[lane], 0] for b in batches])
        reset = torch.cat([b.reset[lane, : b.lengths[lane]] for b in batches])
        assert torch.equal(y[1:] != y[:-1] + 1, reset[1:])
        counts = torch.cat([b.y[1][lane, : b.lengths[lane], 0] for b in batches])
        starts = [*torch.where(reset)[0].tolist(), len(y)]
        for start, stop in itertools.pairwise(starts):  # rows that are read first, and have no term of their own
            before = int(counts[start:stop].int().argmax())
            assert counts[start + before : stop].all() and not counts[start : start + before].any()
            assert before == warmup or (before < warmup and y[start] % 100 == 1)  # fewer at the start of a series only
        assert torch.equal(x[1:][~reset[1:]], y[:-1][~reset[1:]])


def test_first_values_are_not_judged():
    data = streams(made([12, 4]), skip=5)
    counted = torch.cat([batch.y[0][batch.y[1]] for batch in a_pass(data)]).sort().values
    assert counted.tolist() == [*range(6, 13), 103, 104]  # of a short series, half of them are


def test_first_values_are_those_of_each_target():
    y = np.stack([1.0 + np.arange(12), 101.0 + np.arange(12)], 1)
    y[:6, 1] = np.nan
    y[3, 0] = np.nan
    reader = PanelReader(target=("y", "load")).fit(FRAME)[0]
    one = Series("a", 0, y, np.zeros((12, 0)), np.zeros((12, 0)), np.zeros(0))
    data = SeriesStreams(PanelInputs(reader, ("a",), calendar=False), [one], 1, 12, 0, skip=3)
    (batch,) = a_pass(data)
    assert batch.y[0][batch.y[1]].sort().values.tolist() == [*range(5, 13), 110, 111, 112]


def test_past_covariates_end_at_an_origin_by_chance():
    batches = a_pass(streams(made([60, 60, 60], past=1)))
    flags = torch.cat([batch.x[..., 3] for batch in batches])
    assert ((flags.diff(dim=1) <= 0) | (torch.arange(flags.shape[1] - 1) == 0)).all()  # once gone, gone
    ends = flags.sum(1)
    assert len(ends.unique()) > 2
    again = a_pass(streams(made([60, 60, 60], past=1)))
    assert all(torch.equal(a.x, b.x) for a, b in zip(batches, again, strict=True))


def test_new_rows_begin_where_the_state_ends():
    reader, (one, _) = READER.fit(FRAME)
    end = one.start + 3
    later = one._replace(start=end + 3)
    with pytest.raises(InputError, match="its state ends before 2024-05-31"):
        reader.after([later], [end])
    (found,) = PanelReader(**{**vars(reader), "gaps": "fill"}).after([later], [end])
    assert found.start == end + 1 and np.isnan(found.y[:2]).all()
    np.testing.assert_array_equal(found.y[2:], one.y)
    same(reader.after([one], [one.start - 1]), [one])
    with pytest.raises(InputError, match="read that already"):
        reader.after([one], [end])


@pytest.mark.parametrize("times", [["0001", "2024"], ["2023", "2024", "9999"]])
def test_a_time_far_away_is_refused_before_rows_are_made_for_it(times):
    """At one row a second, years between two rows are more rows than any memory holds."""
    rows = {"ds": [f"{year}-01-01 00:00:0{i}" for year in times for i in range(5)], "y": [1.0] * 5 * len(times)}
    with pytest.raises(InputError, match=r"series 'series' has [\d,]{12,} rows missing before .*20,000,000 at most"):
        PanelReader(gaps="fill").fit(rows)
    reader, series = PanelReader(gaps="fill").fit({name: values[:5] for name, values in rows.items()})
    with pytest.raises(InputError, match="rows missing before"):
        reader.after([series[0]._replace(start=series[0].start + 10**9)], [series[0].start])
