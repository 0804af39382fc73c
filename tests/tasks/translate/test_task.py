"""The task translate: pairs in every format, exact resuming, one answer in any batch, and what it refuses."""

import gzip
import itertools
import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from elman import random
from elman.cli import main
from elman.compose import WeightDrop
from elman.data import Position
from elman.decoding import Sampling
from elman.errors import InputError
from elman.nn.distributions import Categorical
from elman.run import load, train
from elman.tasks import plots
from elman.tasks.translate.data import Pair, PairReader, Pairs, batch_of, fit
from elman.tasks.translate.metrics import exposure
from elman.tasks.translate.model import Search, TranslateModelConfig, build
from elman.tasks.translate.seq2seq import smoothed_loss
from elman.tasks.translate.task import (
    DecodingConfig,
    SamplingConfig,
    TranslateConfig,
    TranslateDataConfig,
    TranslateTask,
)
from elman.training.loop import TrainingConfig
from elman.training.optim import OptimConfig


def pairs(n, seed=0):
    random = np.random.default_rng(seed)
    rows = [random.choice(list("abcd"), int(random.integers(1, 6))).tolist() for _ in range(n)]
    return [(" ".join(row), " ".join(row[::-1])) for row in rows]


def write(folder, name, rows):
    for ending, side in (("src", 0), ("tgt", 1)):
        (folder / f"{name}.{ending}").write_text("".join(row[side] + "\n" for row in rows))
    return str(folder / f"{name}.src"), str(folder / f"{name}.tgt")


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch, request):
    if "picture" not in request.node.name:
        monkeypatch.setattr(plots, "alignment", lambda *found: b"")


def config_in(folder, **changes):
    source, target = write(folder, "train", pairs(80))
    valid_source, valid_target = write(folder, "valid", pairs(9, seed=1))
    config = TranslateConfig(
        data=TranslateDataConfig(source, target, valid_source, valid_target, batch_tokens=64),
        model=TranslateModelConfig(size=12, embedding_size=6),
        optim=OptimConfig(lr=0.02, warmup=2),
        training=TrainingConfig(steps=9, log_every=2, evaluate_every=4, average=2),
        out=str(folder / "run"),
    )
    return replace(config, **changes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translate")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "alignment", lambda *found: b"")
        train(config_in(folder, training=TrainingConfig(steps=60, evaluate_every=30)))
    return folder


def test_the_schedules():
    assert [SamplingConfig("linear", 10).truth(i) for i in (0, 5, 20)] == [1.0, 0.5, 0.0]
    assert SamplingConfig("exponential", 10).truth(10) == pytest.approx(np.exp(-1))
    assert SamplingConfig("inverse_sigmoid", 10).truth(0) == pytest.approx(10 / 11)
    assert SamplingConfig("inverse_sigmoid", 10, 0.3).truth(10**6) == 0.3


def test_the_truth_falls_from_batch_to_batch_and_what_is_drawn_differs_from_pass_to_pass(tmp_path):
    schedule = SamplingConfig("linear", 100)
    data = TranslateTask().open(config_in(tmp_path, sampling=schedule, seed=5), None)
    batches, at, seen, passes = data.batches(0, 1), Position(), set(), []
    for number in range(3 * len(batches.order.of_epoch(0))):
        batch = batches.batch(at)
        if at.window == 0:
            passes.append(number)
        i = at.epoch * passes[1] + at.window if at.epoch else number
        assert batch.x.truth.tolist() == [pytest.approx(schedule.truth(i))] * len(batch.y)
        draws = {tuple(draw) for draw in batch.x.draws.tolist()}
        assert len(draws) == len(batch.y) and not draws & seen and {seed for seed, _ in draws} == {5}
        seen |= draws
        at = batches.after(at)
    assert at.epoch >= 2


def test_inputs_are_drawn_step_by_step(trained):
    """Those of a row are the same alone and in any batch; without the truth, all but the first are the model's."""
    model = load(trained / "run").model
    rows = [(np.array([2, 3, 4]), np.array([4, 3, 2])), (np.array([5]), np.array([5]))]
    draws = torch.tensor([[7, 0], [7, 1]])
    x = batch_of(rows, draws, truth=0.5).x
    together = model.drawn_inputs(x)
    alone = model.drawn_inputs(batch_of(rows[1:], draws[1:], truth=0.5).x)
    assert x.truth.tolist() == [0.5, 0.5] and (together[:, 0] == 0).all()
    assert torch.equal(model.drawn_inputs(x._replace(truth=torch.ones(2))), x.target)
    assert torch.equal(alone[0], together[1, :2])


def test_whether_a_symbol_is_drawn_and_which_are_two_numbers(trained):
    """Number 2 t of a row's draw decides whether step t is the true symbol, number 2 t + 1 which other it is."""
    model = load(trained / "run").model
    rows = [(np.array([2, 3, 4]), np.array([4, 3, 2, 5, 4, 3])), (np.array([5, 2]), np.array([5, 2, 2, 3, 4, 5]))]
    draws = torch.tensor([[7, 0], [8, 1]])
    u = random.uniform(draws, 2 * 7)
    for truth in (0.0, 0.5):
        x = batch_of(rows, draws, truth=truth).x
        wanted = x.target.clone()
        with torch.no_grad():
            decoder, state = model.given(x.source, x.sizes)
            for t in range(6):
                predicted, state = decoder.scan(wanted[:, t : t + 1], state)
                sums = predicted.logits[:, 0].double().softmax(-1).cumsum(-1)
                own = (sums < u[:, 2 * t + 3, None]).sum(-1)
                wanted[:, t + 1] = torch.where(u[:, 2 * t + 2] < truth, x.target[:, t + 1], own)
        assert torch.equal(model.drawn_inputs(x), wanted) and not torch.equal(wanted, x.target)


def test_smoothing_is_its_definition():
    logits, y = torch.randn(3, 5, dtype=torch.float64), torch.tensor([0, 2, 4])
    log_p = logits.log_softmax(-1)
    wanted = -0.9 * log_p[torch.arange(3), y] - 0.1 * log_p.mean(-1)
    torch.testing.assert_close(smoothed_loss(Categorical(logits), y, 0.1), wanted)


@pytest.mark.parametrize(
    "model",
    [
        TranslateModelConfig(size=8, embedding_size=6, attention="none"),
        TranslateModelConfig(size=8, embedding_size=6, attention="none", context="every", cell="lstm"),
        TranslateModelConfig(size=8, embedding_size=6, attention="dot", bidirectional=False),
        TranslateModelConfig(size=8, embedding_size=6, attention="general", feeding=True, layers=2),
        TranslateModelConfig(size=8, embedding_size=6, attention="additive", cell="lru"),
        TranslateModelConfig(size=8, embedding_size=6, attention="additive", cell="lru", block="plain"),
        TranslateModelConfig(size=8, embedding_size=6, attention="general", cell="mingru", layers=2),
        TranslateModelConfig(size=8, embedding_size=6, attention="general", tied="all"),
    ],
    ids=lambda m: f"{m.attention} {m.context} {m.cell} {m.block}",
)
def test_every_model_trains_saves_and_answers_alike_in_any_batch(tmp_path, model):
    config = config_in(tmp_path, model=model, training=TrainingConfig(steps=4, evaluate_every=4))
    predictor, _ = train(replace(config, data=replace(config.data, joint=True)))
    texts = ["a b c d", "d", "b b", "", "c a a"]
    search = Search(num_beams=3)
    together = predictor.translations(texts, search)
    assert [predictor.translations([t], search)[0] for t in texts] == together
    assert predictor.translations(texts, search, batch_size=2) == together
    assert together[3][0].text == ""
    predictor.save(tmp_path / "copy")
    assert load(tmp_path / "copy").translations(texts, search) == together


def test_the_search_finds_the_best_of_all(trained):
    """A beam as wide as there are sequences is exhaustive search."""
    model = load(trained / "run")
    text, V = "a b", model.symbols.target.size
    source = model.symbols.source.encode(text)
    every = []
    for n in range(3):
        for tokens in itertools.product(range(2, V), repeat=n):
            x = batch_of([(source, np.array(tokens, np.int64))])
            assert isinstance(x.x, Pairs)
            with torch.no_grad():
                log_p = model.model.forced(x.x, x.lengths).log_prob(x.y).sum().item()
            every.append((log_p / (n + 1), list(tokens)))
    search = Search(num_beams=50, max_ratio=0.0)
    found = [h for h in model.translations([text], search)[0] if len(h.tokens) < 3]
    best = max(every)
    assert found[0].tokens == best[1] and found[0].score == pytest.approx(best[0], abs=1e-5)


def test_limits_are_whole_numbers_of_symbols():
    """At least low times the symbols of the source, at most high times, and ten more."""
    assert Search(min_ratio=0.5, max_ratio=1.5).limits([0, 1, 2, 3]) == ([0, 1, 1, 2], [10, 11, 13, 14])


def test_limits_prefix_and_coverage(trained):
    model = load(trained / "run")
    short = model.translations(["a b c d"], Search(min_ratio=2.0, num_beams=2))[0][0]
    assert len(short.tokens) >= 8
    begun = model.translations(["a b c d"], Search(num_beams=2), prefixes=["c c"])[0][0]
    assert begun.text.startswith("c c")
    plain = model.translations(["a b c d", "b"], Search(num_beams=2))
    covered = model.translations(["a b c d", "b"], Search(num_beams=2, coverage_penalty=0.5))
    for text, row in zip(["a b c d", "b"], covered, strict=True):
        looked = np.minimum(1.0, np.sum(model.alignment(text, row[0].tokens), 0))  # at each symbol of the source
        wanted = row[0].log_prob / (len(row[0].tokens) + 1) + 0.5 * float(np.log(looked).sum())
        assert row[0].score == pytest.approx(wanted, abs=1e-4)
        assert (np.log(looked).sum() < -1e-3) == (text != "b")  # there is nowhere else to look
    assert plain[0][0].score == pytest.approx(plain[0][0].log_prob / (len(plain[0][0].tokens) + 1))
    assert model.translations(["b"], Search(num_beams=2, coverage_penalty=0.5))[0] == covered[1]


def test_samples_are_as_frequent_as_they_are_probable(trained):
    model, N = load(trained / "run"), 3000
    (drawn,) = model.samples(["a b"], Sampling(), count=N)
    counts = Counter((tuple(s.tokens), s.log_prob) for s in drawn)
    (tokens, log_p), _ = counts.most_common(1)[0]
    x = batch_of([(model.symbols.source.encode("a b"), np.array(tokens, np.int64))])
    with torch.no_grad():
        assert model.model.forced(x.x, x.lengths).log_prob(x.y).sum().item() == pytest.approx(log_p, abs=1e-5)
    for (_, log_prob), count in counts.most_common(5):
        p = math.exp(log_prob)  # 0.02 more: the unknown symbol is never drawn, so all others are more probable
        assert count / N == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / N) + 0.02)


def test_samples_are_the_same_alone_and_keep_to_their_limits(trained):
    model, hot = load(trained / "run"), Sampling(temperature=1.5, top_k=3)
    texts = ["a b c d", "b", "", "d c"]
    together = model.samples(texts, hot, count=3, seed=7)
    assert together == [model.samples([text], hot, count=3, seed=7, batch_size=1)[0] for text in texts]
    assert together[0][1:] == model.samples(texts[:1], hot, count=2, seed=8)[0]  # number i has the seed 7 + i
    assert len({tuple(s.tokens) for s in model.samples(["a b c d"], hot, count=20)[0]}) > 5
    assert [row[0].tokens for row in model.samples(texts, Sampling(temperature=0))] == [
        row[0].tokens for row in model.translations(texts, Search())
    ]
    assert len(model.samples(["b"], hot, count=2, seed=2**63 - 2)[0]) == 2  # the last seeds that there are
    with pytest.raises(InputError, match="at most 9223372036854775806"):
        model.samples(["b"], hot, count=2, seed=2**63 - 1)
    limits = Search(min_ratio=2.0, max_ratio=2.0)
    begun = model.samples(["a b"], hot, count=9, limits=limits, prefixes=["c c"])[0]
    assert all(4 <= len(s.tokens) <= 14 and s.text.startswith("c c") for s in begun)


def test_perplexity_does_not_depend_on_the_batch(trained, capsys):
    data = [str(trained / "valid.src"), str(trained / "valid.tgt")]
    answers = []
    for size in ("1", "4"):
        assert main(["evaluate", str(trained / "run"), *data, "--json", "--batch_size", size, "--free_running"]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0] == answers[1] and answers[0]["tokens"] == sum(len(b.split()) + 1 for _, b in pairs(9, seed=1))
    assert {"bleu", "chrf", "bleu_signature", "gap", "free_running", "sentences"} <= answers[0].keys()
    assert answers[0]["free_running"][0]["gap"] == 0  # before the first symbol there is nothing to draw


def test_the_gap_is_by_position(trained):
    model = load(trained / "run")
    rows = PairReader()([str(trained / "valid.src")], [str(trained / "valid.tgt")])
    assert [row["position"] for row in exposure(model, rows)] == list(range(6))


def test_predict(trained, tmp_path, capsys):
    (tmp_path / "in").write_text("a b c\n\nd x\n")
    run = ["predict", str(trained / "run"), str(tmp_path / "in")]
    assert main([*run, "--num_beams", "3", "--alignments", str(tmp_path / "a.jsonl")]) == 0
    out = capsys.readouterr()
    assert len(out.out.split("\n")) == 4 and "number 2" in out.err and out.out.split("\n")[1] == ""
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert rows[0]["source"] == ["a", "b", "c"] and len(rows[0]["weights"]) == len(rows[0]["target"])
    assert all(sum(row) == pytest.approx(1, abs=1e-5) for row in rows[0]["weights"])
    assert main([*run, "--num_beams", "3", "--n_best", "2", "--scores"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert main([*run, "--n_best", "2"]) == 2
    capsys.readouterr()
    assert main([*run, "--temperature", "0.7", "--top_p", "0.9", "--n_best", "2", "--seed", "3", "--scores"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert main([*run, "--temperature", "0.7", "--num_beams", "2"]) == 2
    assert "does not sample" in capsys.readouterr().err
    assert main([*run, "--temperature", "-1"]) == 2


def test_a_picture_of_an_alignment():
    pytest.importorskip("matplotlib")
    assert plots.alignment(["a", "b"], ["b", "</s>"], [[0.1, 0.9], [0.5, 0.5]]).startswith(b"\x89PNG")


def test_pairs_are_the_same_in_every_format(tmp_path):
    rows = pairs(5)
    source, target = write(tmp_path, "p", rows)
    (tmp_path / "p.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in rows))
    (tmp_path / "p.jsonl").write_text("".join(json.dumps({"source": a, "target": b}) + "\n" for a, b in rows))
    with gzip.open(tmp_path / "p.tsv.gz", "wt") as file:
        file.write((tmp_path / "p.tsv").read_text())
    for names in (
        ([source], [target]),
        ([str(tmp_path / "p.tsv")],),
        ([str(tmp_path / "p.tsv.gz")],),
        ([str(tmp_path / "p.jsonl")],),
    ):
        assert [pair[:2] for pair in PairReader()(*names)] == rows


def test_bad_pairs_are_dropped_where_that_is_asked_for(tmp_path, capfd):
    config = config_in(tmp_path, training=TrainingConfig(steps=1))
    with open(config.data.source, "a") as a, open(config.data.target, "a") as b:
        a.write("\na b c d a b c d\n"), b.write("a\nd c\n")
    with pytest.raises(InputError, match=r"line 81 of .* has an empty source"):
        train(config)
    data = replace(config.data, drop=True, max_length=7)
    model, _ = train(replace(config, data=data))
    assert "80 pairs to train on, 9 to validate, 0 to test (2 were left out)" in capfd.readouterr().err
    kept = TranslateTask().open(replace(config, data=data), model).train
    assert [(pair.source, pair.target) for pair in kept] == pairs(80)


def test_symbols_made_up_are_reversed(tmp_path):
    data = TranslateDataConfig("synthetic:reverse,T=4,vocabulary=3,n=8", batch_tokens=40, joint=True)
    model = TranslateModelConfig(size=8, embedding_size=4)
    decoding = DecodingConfig(decides="exact")
    predictor, lines = train(
        TranslateConfig(
            data=data, model=model, decoding=decoding, training=TrainingConfig(steps=3), out=str(tmp_path / "r")
        )
    )
    assert "valid" in lines[-1] and isinstance(predictor.translate(["0 1 2"])[0], str)


def test_the_share_of_unknown_words_is_said(tmp_path, capfd):
    """Of the training pairs, beside every score, and by `evaluate`: a word that occurs once is unknown here."""
    source, target = write(tmp_path, "few", [("a b once", "x y"), *[("a b c", "x y")] * 10])
    valid = write(tmp_path, "new", [("a new c d", "x z"), ("a b", "x y")])
    config = config_in(tmp_path, training=TrainingConfig(steps=2, evaluate_every=2))
    train(replace(config, data=TranslateDataConfig(source, target, *valid, min_count=2, batch_tokens=64)))
    said = capfd.readouterr().err
    assert "unknown: 3.03% of the source, 0.00% of the target" in said  # 1 of 33 words
    assert "(unknown: 33.33% of the source, 25.00% of the target)" in said.split("step 2  valid perplexity")[1]
    assert main(["evaluate", config.out, *valid, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["unknown_source"], found["unknown_target"]) == (pytest.approx(2 / 6), pytest.approx(1 / 4))


@pytest.mark.parametrize(("attention", "feeding"), [("additive", False), ("general", True), ("general", False)])
def test_weights_are_dropped_in_both_directions_of_the_encoder_and_in_the_decoder(attention, feeding):
    config = TranslateModelConfig(size=4, embedding_size=3, attention=attention, feeding=feeding, weight_dropout=0.4)
    model = build(config, fit([Pair("a b", "b a", "here")], "word", False, 1, 10))
    assert [part.p for part in model.encoder.modules() if isinstance(part, WeightDrop)] == [0.4, 0.4]
    assert [part.p for part in model.decoder.modules() if isinstance(part, WeightDrop)] == [0.4]
