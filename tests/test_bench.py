"""The peers of the benchmarks compute what we compute: the ones in packages that the tests have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bench import guard, language_model, limits, tables, turns, with_torch
from bench.all import PARTS
from bench.inputs import lengths
from bench.rows import FAMILIES, Row
from elman import hmm, kernels


def of(prepare: Any, case: dict[str, Any]) -> dict[str, np.ndarray]:
    run, outputs = prepare(case, 1)
    return dict(outputs(run()))


@pytest.mark.skipif(kernels.active() != "native", reason="what is measured are the native kernels")
@pytest.mark.parametrize("how", ["gather", "packed"])
def test_ragged_peers_are_ours(how: str) -> None:
    from bench import with_elman

    case = {"family": "ragged", "mode": "train", "B": 5, "T": 9, "D": 3, "K": 4}
    ours, theirs = of(with_elman.prepare, case), of(with_torch.prepare, {**case, "how": how})
    for name in ("y", "gx", "gU", "gW", "gb"):
        np.testing.assert_allclose(theirs[name], ours[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
@pytest.mark.parametrize("batch_first", [True, False])
def test_two_layers_with_a_gather_are_the_packed_one(kind: type[nn.RNNBase], batch_first: bool) -> None:
    torch.manual_seed(0)
    layer = kind(3, 4, bidirectional=True, batch_first=batch_first)
    x, lengths = torch.randn(5, 9, 3), torch.tensor([9, 1, 4, 7, 4])
    x = x if batch_first else x.transpose(0, 1)
    y, last = with_torch.Gathered(layer)(x, lengths)
    wanted, wanted_last = with_torch.Packed(layer)(x, lengths)
    torch.testing.assert_close(y, wanted)
    torch.testing.assert_close(last, wanted_last)


def test_products_of_torch_and_of_onednn_are_equal() -> None:
    case = {"family": "product", "mode": "forward", "M": 16, "K": 8, "N": 24}
    mkl, onednn = (of(with_torch.prepare, {**case, "how": how})["y"] for how in ("MKL", "oneDNN"))
    np.testing.assert_allclose(onednn, mkl, rtol=1e-5, atol=1e-5)


def test_the_fastest_of_torch_and_jax_counts() -> None:
    rows = [row for row in FAMILIES["training"] if "lstm" not in row.name]
    assert rows and all({library for library, _ in row.peers} == {"torch", "jax"} for row in rows)
    assert {library for row in FAMILIES["products"] for library, _ in row.peers} == {"torch", "jax"}


def test_the_scripted_loop_is_the_loop() -> None:
    case = {"family": "gated", "cell": "lstm_norm", "mode": "train", "B": 2, "T": 6, "D": 3, "K": 4}
    loop, script = (of(with_torch.prepare, {**case, "how": how}) for how in ("loop", "TorchScript"))
    for name, value in loop.items():
        np.testing.assert_allclose(script[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def _peers(row: Row) -> set[str]:
    return {case.get("how", "") for _, case in row.peers}


def test_a_ragged_row_is_held_against_the_gather_and_the_packed_one_is_named() -> None:
    ragged = FAMILIES["ragged"]
    assert {row.name.endswith(", packed"): _peers(row) for row in ragged} == {True: {"packed"}, False: {"gather"}}
    assert all((row.must is None) == row.name.endswith(", packed") for row in ragged)


def test_generation_is_held_against_the_better_number_of_threads() -> None:
    rows = [row for row in language_model.ROWS if "generate" in row.name]
    assert [_peers(row) for row in rows] == [{"1 thread", "2 threads"}] * 2


def _measured(rng: np.random.Generator, ratio: float, spread: float) -> guard.Measured:
    """A row whose passes are spread by a share of its ratio."""
    ratios = ratio * (1 + spread * rng.standard_normal(guard.PASSES))
    return guard.over_passes([{"best": r, "faults": 0.0, "quiet": True} for r in ratios])


@pytest.mark.parametrize(("ratio", "least", "most"), [(1.7, 0.95, 1.0), (2.0, 0.0, 0.02), (2.2, 0.0, 0.0)])
def test_a_fall_is_seen_and_the_same_is_none(ratio: float, least: float, most: float) -> None:
    """Passes that are spread by 3 %, about 2 when the ratio was stored: how often a row is called slower."""
    rng = np.random.default_rng(0)
    verdicts = [guard.fallen(_measured(rng, 2.0, 0.03), _measured(rng, ratio, 0.03)) for _ in range(500)]
    assert least <= verdicts.count("SLOWER") / len(verdicts) <= most


def test_a_narrow_row_need_not_fall_far_and_a_wide_one_must() -> None:
    rng = np.random.default_rng(1)
    narrow = [guard.fallen(_measured(rng, 2.0, 0.005), _measured(rng, 1.9, 0.005)) for _ in range(200)]
    wide = [guard.fallen(_measured(rng, 2.0, 0.3), _measured(rng, 1.9, 0.3)) for _ in range(200)]
    assert narrow.count("SLOWER") > 190 and wide.count("SLOWER") < 10


def test_the_error_of_a_row_is_between_its_passes() -> None:
    passes = [{"best": r, "error": 0.0, "faults": f, "quiet": True} for r, f in ((1.0, 0.0), (1.2, 0.0), (1.4, 9.0))]
    found = guard.over_passes(passes)
    assert found["ratio"] == pytest.approx(1.2) and found["error"] == pytest.approx(guard.MEDIAN * 0.2 / 3**0.5)
    wild = guard.over_passes([*passes, {**passes[0], "best": 9.0}, {**passes[0], "best": 1.2}])
    assert wild["ratio"] == pytest.approx(1.2)  # a pass that something disturbed does not move it
    assert found["faults"] == 0.0 and found["quiet"]
    assert not guard.over_passes([*passes, {**passes[0], "quiet": False}])["quiet"]


def test_page_faults_where_there_were_none_are_a_fall() -> None:
    before = {"ratio": 2.0, "error": 0.01, "faults": 0.2}
    assert guard.fallen(before, {**before, "faults": 622.0}) == "PAGE FAULTS"
    assert guard.fallen({**before, "faults": 500.0}, {**before, "faults": 622.0}) == ""
    assert guard.fallen({**before, "faults": 500.0}, {**before, "faults": 1500.0}) == "PAGE FAULTS"
    assert guard.fallen({**before, "faults": 0.9}, {**before, "faults": 1.7}) == "PAGE FAULTS"
    assert guard.fallen(None, {**before, "faults": 622.0}) == ""


def test_a_guard_without_ratios_fails_and_stores_none_of_a_busy_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now = {"ratio": 2.0, "error": 0.01, "passes": [2.0], "faults": 0.0, "quiet": False}
    rows = [Row("a", {}, (), None, None)]
    monkeypatch.setattr(guard, "TABLE", tmp_path / "guard.json")
    monkeypatch.setattr(guard, "ROWS", rows)
    monkeypatch.setattr(guard, "measure", lambda rows, report: {row.name: now for row in rows})

    def run(*flags: str) -> int:
        monkeypatch.setattr("sys.argv", ["guard", *flags])
        return guard.main()

    assert run() == 1
    assert run("--write", "first") == 1 and not guard.TABLE.exists()
    now["quiet"] = True
    assert run("--write", "first") == 0 and run() == 0
    now["ratio"] = 1.0
    assert run() == 1


def test_the_guard_has_the_rows_that_are_stored() -> None:
    stored = json.loads(guard.TABLE.read_text())
    assert {name.partition(",")[0] for name in stored} == {"avx512", "avx2"}
    assert all(list(table["rows"]) == [row.name for row in guard.ROWS] for table in stored.values())
    assert all(table["why"] for table in stored.values())
    (ragged,) = [row for row in guard.ROWS if "ragged" in row.name]
    assert "how" not in ragged.peers[0][1]  # packed, as when the ratios were stored


def test_a_ratio_is_that_of_the_rounds() -> None:
    found = turns.result("a", "torch", [1.0, 2.0, 4.0], [2.0, 6.0, 16.0], must=3.5)
    assert found["ratio"] == 3.0 and found["reached"] is False and found["ours"] == 2000.0 and found["best"] == 2.0
    rates = turns.result("a", "torch", [2.0, 6.0, 16.0], [1.0, 2.0, 4.0], must=3, inverted=True, unit="steps/s")
    assert rates["ratio"] == 3.0 and rates["reached"] is True and rates["ours"] == 6.0
    most = turns.result("a", "torch", [1.0] * 3, [2.0] * 3, must=1.5, upper=True, per_round=10, unit="words/s")
    assert most["reached"] is False and most["ours"] == 10.0 and most["theirs"] == 5.0


def test_a_step_is_repeated_for_a_tenth_of_a_second_and_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = 0.0, [0, 0]

    def step(which: int, seconds: float) -> None:
        nonlocal now
        now += seconds
        calls[which] += 1

    monkeypatch.setattr(turns.time, "perf_counter", lambda: now)
    monkeypatch.setattr(turns.time, "sleep", lambda seconds: None)
    times = turns.in_turn([lambda: step(0, 0.03), lambda: step(1, 0.2)], rounds=3)
    assert [[round(each, 9) for each in side] for side in times] == [[0.03] * 3, [0.2] * 3]
    assert calls == [2 + 3 * 4, 2 + 3]  # 4 times 0.03 are the first that reach a tenth


def test_a_ratio_that_is_not_that_of_the_medians_is_named() -> None:
    jumps = turns.result("a", "torch", [1.0, 9.0, 9.0], [2.0, 18.0, 3.0])  # ratios 2, 2, 1/3; medians 9 and 3
    assert tables.unstable(jumps) and "| a (unstable: 0.33 by the medians of both sides) |" in tables.table([jumps])
    steady = turns.result("a", "torch", [1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    rates = turns.result("a", "torch", [1.0, 2.0, 3.0], [2.0, 4.0, 6.0], per_round=10, unit="steps/s")
    inverted = turns.result("a", "torch", [2.0, 4.0, 6.0], [1.0, 2.0, 3.0], inverted=True, unit="p50 ms")
    assert not any(map(tables.unstable, (steady, rates, inverted, turns.figure("a", 1.0, "ms"))))


def test_changes_that_are_not_committed_are_not_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from bench import all as everything

    monkeypatch.setattr("sys.argv", ["all", "products"])
    monkeypatch.setattr(everything, "commit", lambda: "abc+")
    monkeypatch.setattr(everything, "measure", lambda *given: pytest.fail("measured"))
    with pytest.raises(SystemExit):
        everything.main()
    assert "not committed" in capsys.readouterr().err


def test_a_peer_without_any_output_of_ours_is_not_timed(tmp_path: Path) -> None:
    from bench.kernels import _difference

    np.savez(tmp_path / "ours.npz", y=np.ones(2))
    np.savez(tmp_path / "same.npz", y=np.ones(2))
    np.savez(tmp_path / "other.npz", z=np.ones(2))
    assert _difference(tmp_path / "ours.npz", tmp_path / "same.npz") == ""
    assert "no output of ours" in _difference(tmp_path / "ours.npz", tmp_path / "other.npz")
    np.savez(tmp_path / "counted.npz")
    assert _difference(tmp_path / "counted.npz", tmp_path / "counted.npz") == ""


def test_tables_are_those_of_the_results() -> None:
    """`python -m bench.tables` writes them; every part is on a page for each instruction set that has results."""
    pages = tables.pages()
    for page in pages:
        assert tables.written(page.read_text()) == page.read_text(), f"{page.name} is not as the results have it"
    asked = {(isa, part) for page in pages for _, isa, parts, _ in tables.BLOCK.findall(page.read_text())
             for part in parts.split()}  # fmt: skip
    for isa in ("avx512", "avx2"):
        assert {part for other, part in asked if other == isa} == {"setting", "missed", *PARTS}


def test_what_is_measured_replaces_what_stands_there(monkeypatch: pytest.MonkeyPatch) -> None:
    page = "a\n<!-- bench avx2: hmm -->\nof an earlier session\n<!-- end of bench -->\nb\n"
    results: dict[str, Any] = {"isa": "avx2", "machine": {}, "parts": {}}
    monkeypatch.setattr(tables, "stored", lambda isa: results)
    assert tables.written(page) == page
    results["parts"]["hmm"] = {"rows": [turns.result("a row", "hmmlearn", [1.0] * 2, [2.0] * 2)]}
    written = tables.written(page)
    assert "| a row | hmmlearn | 2.00 |" in written and "earlier" not in written and written.endswith("bench -->\nb\n")


def test_a_peer_that_may_use_more_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import bench

    monkeypatch.setattr(bench, "HOLDING", True)
    held, free = (turns.result("a", peer, [2.0] * 2, [1.0] * 2, must=1) for peer in ("torch", "onnxruntime 1 thread"))
    assert "MISSED" in tables.table([held]) and "AVX-512" not in tables.table([held])
    assert "MISSED" not in tables.table([free]) and "onnxruntime 1 thread, free to use AVX-512" in tables.table([free])
    assert not any(bench.free(peer) for peer in ("jax scan", "jax associative", "torch gather", "hmmlearn", "elman"))
    assert all(bench.free(peer) for peer in ("jax", "dynamax", "FastAPI, onnxruntime"))


def test_parts_are_of_one_commit_or_the_page_says_so() -> None:
    machine = {"processor": "p", "cores": 2, "system": "s", "torch": "2"}
    part = {"date": "2026-01-01 10:00", "seconds": 1, "rows": []}
    parts = {name: {**part, "commit": "aaa"} for name in PARTS}
    results = {"isa": "avx2", "machine": machine, "held": {"X": "1"}, "parts": parts}
    assert "commit aaa, parts begun from" in tables.setting(results) and "`X=1`" in tables.setting(results)
    parts["hmm"] = {**part, "commit": "bbb"}
    assert "commit aaa, but hmm at bbb, parts begun from" in tables.setting(results)
    del parts["hmm"]
    assert "Not measured: hmm." in tables.setting(results)


@pytest.mark.filterwarnings("ignore:EM stopped")
def test_fits_of_hmmlearn_are_scaled_and_end_where_ours_do() -> None:
    pytest.importorskip("hmmlearn")
    import hmmlearn.hmm as theirs

    from bench import hmm as bench

    fit = bench._small(models=2)
    found = fit(theirs)
    assert [model.implementation for model in found] == ["scaling"] * 2
    ours = fit(hmm)
    bench.same(ours, found)
    ours[0].means_ = ours[0].means_ + 1e-3
    with pytest.raises(AssertionError, match="means_"):
        bench.same(ours, found)


def test_fits_from_k_means_begin_once() -> None:
    pytest.importorskip("hmmlearn")
    import hmmlearn.hmm as theirs

    from bench import hmm as bench

    begun = []
    from sklearn.cluster import KMeans

    class Counted(KMeans):
        def fit(self, *given: Any, **more: Any) -> Any:
            begun.append(self.n_init)
            return super().fit(*given, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sklearn.cluster.KMeans", Counted)
        bench._small_from_means(models=2)(theirs)
    assert begun == [1, 1]


def test_the_lens_by_hand_is_the_lens() -> None:
    from bench import lens as bench
    from elman import lens

    torch.manual_seed(0)
    cell, x = nn.GRUCell(bench.K, bench.K).requires_grad_(False), torch.randn(2, 12, bench.K)
    [found] = lens.reach(bench.twin(cell), lens.Sample(x), anchors=2)
    wanted = bench.reach_by_hand(cell, x).mean(1)
    assert len(found.tau) == len(wanted)
    torch.testing.assert_close(torch.tensor(found.raw), wanted, rtol=1e-3, atol=1e-6)


def row(name: str, ours: float, unit: str = "ms") -> dict[str, Any]:
    return {"name": name, "ours": ours, "theirs": 2 * ours, "ratio": 2.0, "unit": unit, "free": False}


def test_a_row_is_held_against_what_the_machine_does() -> None:
    """Multiply-adds and bytes, counted by hand."""
    product = row(limits.PRODUCT, 10.0)  # 1.61e9 multiply-adds in 10 ms: 161 G a second
    train = row(
        "train lstm (16,200,128,128)", 12.0
    )  # 3 * 3,200 steps * 512 sums * 256 numbers = 1.258e9: 105 G a second
    wanted = "65% of the products' 161 G multiply-adds a second; all: 3.07"  # 2 / 0.651
    assert limits.share(train, [product, train]) == wanted
    assert limits.share(train, [train]) == ""
    jax = {**product, "theirs": 5.0, "free": True}  # on AVX-512, where ours are on AVX2
    held = {**row(f"{limits.PRODUCT}, torch", 10.0), "theirs": 8.0}
    assert limits.share(train, [jax, train]) == wanted
    assert limits.share(train, [jax, held, train]).startswith("52% of the products' 201 G multiply-adds a second")
    assert limits.multiply_adds(limits.CASES["forward gru (1,1000,128,128)"]) is None
    one = row("forward gru (1,1000,128,128)", 2.0)  # 1,000 times 3 * 128 * 128 weights of 4 bytes in 2 ms
    known = row("matrix-vector product, 3 x 128 rows of 256", 50.0, "GB/s")
    assert limits.share(one, [product, one, known]) == f"98 GB/s; 50 by {known['name']}"
    step = row("stream step gru (1,1,128,128)", 0.01)  # 3 * 128 * 256 weights of 4 bytes in 10 us
    memory = row("matrix-vector product, 3 x 128 rows of 256", 50.0, "GB/s")
    assert limits.share(step, [step, memory]) == f"39 GB/s; 50 by {memory['name']}"
    scan = row("forward real scan (8,1024,256)", 1.0)  # a, b and h
    of_scan = row("sum of arrays of 2,097,152 numbers, 2 threads", 30.0, "GB/s")
    assert limits.share(scan, [scan, of_scan]) == f"25 GB/s; 30 by {of_scan['name']}"
    assert limits.share(row("fit K = 3, 200000 observations", 1.0), [product, of_scan]) == ""


def test_work_in_two_directions_and_the_arrays_of_each_scan_are_counted() -> None:
    ragged = limits.CASES["train ragged bidirectional lstm (32,50,128,128)"]
    steps = int(lengths(32, 50).sum())
    assert 32 < steps < 32 * 50
    assert limits.multiply_adds(ragged) == 2 * 3 * steps * 4 * 128 * (128 + 128)
    arrays = {  # forward b and h, of a real one a too; then backward h, gy, gb, of a real one a and ga too
        ("real", "forward"): 3 * 4, ("real", "train"): (3 + 5) * 4,
        ("complex", "forward"): 2 * 8, ("complex", "train"): (2 + 3) * 8,
    }  # fmt: skip
    scans = [case for case in limits.CASES.values() if case["family"] == "scan"]
    assert {(case["number"], case["mode"]) for case in scans} == {*arrays}
    for case in scans:
        numbers = case["B"] * case["T"] * case["C"]
        assert limits.bytes_moved(case) == arrays[case["number"], case["mode"]] * numbers


def test_the_page_on_other_libraries_shows_the_programs_that_were_run() -> None:
    from bench import laws_elsewhere

    page = laws_elsewhere.PAGE.read_text()
    for path in laws_elsewhere.reproducers():
        first, _, code = path.read_text().partition("\n")
        assert f"### {first.removeprefix('# ')}\n" in page and code.strip() in page, path.name


@torch.no_grad()
def test_laws_elsewhere_find_what_breaks_them() -> None:
    """nn.GRU keeps them; one that forgets its state between calls, or that reads its padding, does not."""
    from bench import laws_elsewhere, models_elsewhere

    gru = models_elsewhere.of_torch(nn.GRU)
    found = laws_elsewhere.check(gru)
    assert found.pop("left") == "" and all(error <= laws_elsewhere.HOLDS for error in found.values())
    forgets = laws_elsewhere.check(
        gru._replace(feed=lambda x, state, mask: gru.feed(x, None if state is None else state * 0, mask))
    )
    assert all(forgets[law] > laws_elsewhere.HOLDS for law in ("steps", "chunks", "fork"))
    reads = laws_elsewhere.check(gru._replace(feed=lambda x, state, mask: gru.feed(x, state, None)))
    assert reads["left"] > laws_elsewhere.HOLDS and reads["continue"] > laws_elsewhere.HOLDS
