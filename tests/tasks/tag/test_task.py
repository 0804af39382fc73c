import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from elman.cli import main
from elman.data.text import MEMORY
from elman.errors import InputError
from elman.run import load, train
from elman.tasks import plots
from elman.tasks.tag.model import Tagger, TagModelConfig
from elman.tasks.tag.task import Predict, TagConfig, TagDataConfig, TagTask, predict
from elman.training.loop import TrainingConfig
from elman.training.optim import OptimConfig
from elman.training.record import Preview

NOUNS, VERBS = ("Dog", "Catz", "Birds", "treez"), ("run", "runs", "saw", "sees")


def sentences(n, seed=0):
    """Spans of a made-up grammar: `the NOUN` is a chunk of two words, and so is a verb after `will`."""
    random = np.random.default_rng(seed)
    for _ in range(n):
        words, tags = [], []
        for _ in range(int(random.integers(1, 4))):
            noun, verb, will = random.choice(NOUNS), random.choice(VERBS), random.random() < 0.5
            words += ["the", str(noun), *(["will"] if will else []), str(verb), "."]
            tags += ["B-NP", "I-NP", *(["B-VP", "I-VP"] if will else ["B-VP"]), "O"]
        yield words, tags


def write(path, rows):
    blocks = ["".join(f"{w} {'D' if w == 'the' else 'N'} {t}\n" for w, t in zip(*row, strict=True)) for row in rows]
    path.write_text("\n".join(blocks))
    return str(path)


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """They have tests of their own, and take longer than such short runs."""
    monkeypatch.setattr(plots, "preview", lambda *found: Preview())


@pytest.fixture
def config(tmp_path):
    return TagConfig(
        data=TagDataConfig(train=write(tmp_path / "train.txt", sentences(60)), batch_size=8),
        model=TagModelConfig(size=8, embedding_size=8, char_size=4, char_embedding_size=4, case_size=2, feature_size=3),
        optim=OptimConfig(lr=0.02, warmup=2),
        training=TrainingConfig(steps=12, log_every=2, evaluate_every=5),
        out=str(tmp_path / "run"),
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tag")
    data = TagDataConfig(
        train=write(folder / "train.txt", sentences(100)),
        test=write(folder / "test.txt", sentences(30, 7)),
        features=[1],
        train_as="iobes",
    )
    model = TagModelConfig(size=12, embedding_size=12, char_size=4, char_embedding_size=4, embedding_dropout=0.1)
    config = TagConfig(
        data=data, model=model, optim=OptimConfig(lr=0.03, warmup=2), out=str(folder / "run"),
        training=TrainingConfig(steps=60, evaluate_every=30),
    )  # fmt: skip
    return folder, *train(config)


@pytest.mark.slow
def test_it_learns_and_says_so(trained, capsys):
    folder, model, history = trained
    assert history[-1]["test"] > 0.95
    assert model.lexicon.scheme == "iob2" and {"E-NP", "S-VP"} <= set(model.lexicon.tags)  # trained as IOBES
    assert main(["evaluate", str(folder / "run"), str(folder / "test.txt"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["f1"] == history[-1]["test"] and found["scheme"] == "iob2" and set(found["labels"]) == {"NP", "VP"}
    assert set(found["labels"]["NP"]) == {"precision", "recall", "f1", "support"}
    assert {"accuracy", "precision", "recall"} < set(found)


def test_predictions_are_the_columns_that_came_in_and_the_tag(trained, capsys, tmp_path):
    folder, model, _ = trained
    (tmp_path / "raw.txt").write_text("the D\nDog N\nruns N\n\nthe\tD\n")
    assert main(["predict", str(folder / "run"), str(tmp_path / "raw.txt")]) == 0
    assert capsys.readouterr().out.startswith("the D B-NP\nDog N I-NP\nruns N B-VP\n\nthe\tD\t")
    assert main(["predict", str(folder / "run"), str(tmp_path / "raw.txt"), "--probabilities"]) == 0
    assert re.match(r"the D B-NP [01]\S*\n", capsys.readouterr().out)
    assert main(["predict", str(folder / "run"), str(tmp_path / "raw.txt"), "--format", "text"]) == 2
    assert "reads the columns [1] too" in capsys.readouterr().err


@pytest.mark.parametrize("crf", [True, False])
def test_text_and_json_lines_are_tagged(config, tmp_path, capsys, crf):
    model, _ = train(replace(config, model=replace(config.model, crf=crf, cell="gru", char_cell="mingru")))
    (tmp_path / "raw.txt").write_text("the Dog\nruns\n")
    assert main(["predict", config.out, str(tmp_path / "raw.txt"), "--format", "text", "--probabilities"]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert [line.split(" ")[0] for line in lines] == ["the", "Dog", "", "runs", "", ""]
    (tmp_path / "raw.jsonl").write_text('{"tokens": ["the", "Dog"]}\n')
    assert main(["predict", config.out, str(tmp_path / "raw.jsonl")]) == 0
    assert json.loads(capsys.readouterr().out)["tags"] == model.tag(["the", "Dog"])
    model.save(tmp_path / "copy")
    assert load(tmp_path / "copy").tag_all([["the", "Dog"], []]) == model.tag_all([["the", "Dog"], []])


def test_a_crf_never_writes_what_the_scheme_does_not(config):
    """After three steps a model knows little; its tags are well-formed all the same."""
    model, _ = train(replace(config, training=replace(config.training, steps=3)))
    given = model.reader([config.data.train])
    loose, strict = model.evaluate(given), model.evaluate(given, strict=True)
    assert loose.numbers == strict.numbers


FED_BACK = {"crf": False, "feedback": True, "feedback_sampled": 0.3, "cell": "gru"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["copy", "selective-copy"])
def test_copying_is_tagging_of_the_answer(config, kind, capsys):
    name = f"synthetic:{kind},T=4,tokens=2,vocabulary=3,n=50"
    model = TagModelConfig(cell="gru", size=24, char_size=0, case_size=0, bidirectional=False, crf=False,
                        embedding_dropout=0.0, readout_dropout=0.0, word_dropout=0.0)  # fmt: skip
    settings = replace(config, data=replace(config.data, train=name, batch_size=32), model=model)
    train(replace(settings, training=TrainingConfig(steps=250, evaluate_every=250)))
    assert main(["evaluate", config.out, name + ",seed=5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["words"] == 50 * (8 if kind == "copy" else 2)
    assert found["answer_accuracy" if kind == "copy" else "accuracy"] > 0.8  # chance is 1 / 3
    if kind == "selective-copy":
        with pytest.raises(InputError, match="needs a tag for every word"):
            train(replace(settings, model=replace(model, crf=True), out=config.out + "2"))


@pytest.mark.slow
def test_tags_are_fed_back(config, tmp_path, capsys):
    model = replace(config.model, **FED_BACK, embedding_dropout=0.1, size=16)
    predictor, history = train(replace(config, model=model, training=TrainingConfig(steps=60, evaluate_every=60)))
    assert [line["valid"] for line in history if "valid" in line][-1] > 0.9
    given = predictor.reader([config.data.train])
    assert predictor.tag_all(given, 1) == predictor.tag_all(given, 9)
    for beams in ("1", "4"):
        assert main(["evaluate", config.out, config.data.train, "--num_beams", beams, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["f1"] > 0.9
    with pytest.raises(InputError, match=r"--model\.crf false"):
        train(replace(config, model=replace(model, crf=True), out=config.out + "2"))


def test_vectors_are_where_the_words_begin(config, tmp_path, capsys):

    (tmp_path / "v.txt").write_text("the 1 2 3 4 5 6 7 8\nunheard 0 0 0 0 0 0 0 0\n")
    config = replace(config, model=replace(config.model, vectors=str(tmp_path / "v.txt")))
    task = TagTask()
    model = task.build(config, task.open(config, None))
    row = model.model.embed.words.weight[model.lexicon.words.numbers(["the"])[0]]
    assert row.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert re.search("vectors of 1 of the [0-9]+ words", capsys.readouterr().err)
    config = replace(config, model=replace(config.model, embedding_size=9))
    assert main_fails(config, capsys, "line 1 of .*v.txt has 8 numbers")


def main_fails(config, capsys, message):
    arguments = ["--data.train", config.data.train, "--out", config.out + "-bad", "--task", "tag"]
    more = ["--model.vectors", config.model.vectors, "--model.embedding_size", str(config.model.embedding_size)]
    code, error = main(["train", *arguments, *more]), capsys.readouterr().err
    return code == 2 and re.search(message, error) and "Traceback" not in error


def test_types_that_training_never_saw_are_named_and_marks_are_scored(config, tmp_path, capsys):
    train(config)
    bad = write(tmp_path / "test.txt", [(["the", "Dog"], ["B-NP", "B-ODD"])])
    assert main(["evaluate", config.out, bad]) == 2
    assert "'B-ODD', which the model was not trained on" in capsys.readouterr().err
    with pytest.raises(InputError, match="B-ODD"):
        train(replace(config, data=replace(config.data, valid=bad), out=config.out + "2"))
    known = write(tmp_path / "known.txt", [(["the", "Dog"], ["B-NP", "I-VP"])])  # I-VP alone is a mark, not a type
    assert main(["evaluate", config.out, known, "--json"]) == 0


def test_a_tag_may_occur_only_where_chance_has_put_it_aside(config, tmp_path):
    """Whatever the split, each tag of the training file is one of the model's."""

    rows = [*sentences(30), (["so"], ["B-RARE"]), (["ah"], ["B-ODD"])]
    path = write(tmp_path / "rare.txt", rows)
    for share in (0.1, 0.5, 0.9):
        data = replace(config.data, train=path, split=(1 - share, share, 0.0))
        assert {"B-RARE", "B-ODD"} <= set(TagTask().open(replace(config, data=data), None).lexicon.tags)


def test_a_part_of_the_validation_data_is_sentences_with_so_many_words(config):

    data = TagTask().open(config, None)
    words = [len(sentence.words) for sentence in data.valid]
    assert data.first(data.valid, sum(words)) is data.valid
    assert data.first(data.valid, sum(words[:3])) == data.valid[:3]
    assert data.first(data.valid, 1) == data.valid[:1]
    model, history = train(replace(config, training=replace(config.training, evaluate_tokens=words[0])))
    assert "sentences to train on" in data.summary()[0] and "bidirectional lstm 8, crf" in repr(model)


def test_the_loss_is_per_word(config):
    from elman.data import Position

    task = TagTask()
    data = task.open(config, None)
    torch.manual_seed(0)
    model = task.build(config, data)
    batch = data.batches(0, 1).batch(Position())
    model.model.eval()
    total, count, state = task.loss(model.model, batch, None)
    chain, _ = model.model.scan(batch.x, lengths=batch.lengths)
    assert count == int(batch.lengths.sum()) and state is None
    assert total.item() == pytest.approx(-chain.log_prob(batch.y).sum().item())


def test_words_without_a_tag_are_no_terms_of_the_loss(config):
    """Of selective copying, the cues alone have tags: - log P of them, and their number."""
    from elman.data import Position

    copying = TagDataConfig(train="synthetic:selective-copy,T=9,tokens=2,vocabulary=3,n=20", batch_size=8)
    config, task = replace(config, data=copying, model=replace(config.model, crf=False)), TagTask()
    data = task.open(config, None)
    model = task.build(config, data).model.eval()
    batch = data.batches(0, 1).batch(Position())
    total, count, _ = task.loss(model, batch, None)
    predicted, _ = model.scan(batch.x, lengths=batch.lengths)
    log_p = predicted.log_probs()[:, 9:].gather(-1, batch.y[:, 9:, None])
    assert count == 8 * 2 and (batch.y[:, :9] < 0).all() and (batch.y[:, 9:] >= 0).all()
    assert total.item() == pytest.approx(-log_p.sum().item(), rel=1e-5)


def test_a_run_begins_with_another_model(trained, tmp_path, capsys):
    folder, model, _ = trained
    data = write(tmp_path / "more.txt", [(["a", "newt", "."], ["B-NP", "I-NP", "O"])] * 8)
    command = ["train", "--task", "tag", "--init_from", str(folder / "run"), "--data.train", data]
    assert main([*command, "--training.steps", "1", "--optim.lr", "1e-9", "--out", str(tmp_path / "run")]) == 0
    tuned = load(tmp_path / "run")
    assert tuned.lexicon.to_json() == model.lexicon.to_json()  # `newt` stays unknown
    given = model.reader([str(folder / "test.txt")])
    assert tuned.tag_all(given) == model.tag_all(given)
    assert f"{len(model.lexicon.words.names)} words and {len(model.lexicon.tags)} tags" in capsys.readouterr().err
    write(tmp_path / "more.txt", [(["a", "newt", "."], ["B-ODD", "I-ODD", "O"])] * 8)
    assert main([*command, "--out", str(tmp_path / "odd")]) == 2
    assert "'B-ODD', which the model was not trained on" in capsys.readouterr().err
    assert not (tmp_path / "odd").exists()


@pytest.mark.parametrize("cell", ["lru", "mamba"])
def test_linear_cells_stand_in_the_block_of_their_paper(config, cell):
    model, _ = train(replace(config, model=replace(config.model, cell=cell, layers=2)))
    assert model.config.block == "residual" and model.model.core.output_size == config.model.size
    again = load(config.out)
    given = [words for words, _ in sentences(5, 3)]
    assert model.marginals(given) == again.marginals(given, batch_size=2)  # read from both ends, in any batch


UD = """# sent_id = 1
# text = the Dog runs
1-2\ttheDog\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
1\tthe\tthe\t{}\t_\tPronType=Art\t2\tdet\t_\t_
2\tDog\tdog\t{}\t_\t_\t3\tnsubj\t_\tGloss=dog
2.1\tx\tx\tX\t_\t_\t_\t_\t3:dep\t_
3\truns\trun\t{}\t_\t_\t0\troot\t_\t_

"""


def test_predictions_for_conllu_are_conllu(config, tmp_path, capsys):
    """The tag in its column; comments, multi-word tokens and empty nodes stay. The names of the files say nothing."""
    (tmp_path / "ud.txt").write_text(UD.format("DET", "NOUN", "VERB") * 20)
    model, _ = train(replace(config, data=replace(config.data, train=str(tmp_path / "ud.txt"))))
    tags = model.tag(["the", "Dog", "runs"])
    (tmp_path / "raw.txt").write_text(UD.format("_", "_", "_") * 2)
    assert main(["predict", config.out, str(tmp_path / "raw.txt")]) == 0
    assert capsys.readouterr().out == UD.format(*tags) * 2
    assert main(["predict", config.out, str(tmp_path / "raw.txt"), "--probabilities"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"Gloss=dog\|TagProbability=[01]\S*", lines[4].split("\t")[9])
    assert re.fullmatch(r"TagProbability=[01]\S*", lines[3].split("\t")[9]) and lines[2].endswith("SpaceAfter=No")


@pytest.mark.parametrize("format", ["auto", "columns"])
def test_raw_text_is_tagged_word_by_word(config, tmp_path, capsys, format):
    model, _ = train(replace(config, data=replace(config.data, format=format)))
    (tmp_path / "raw.txt").write_text("the Dog will run .\nthe Birds saw .\n")
    assert main(["predict", config.out, str(tmp_path / "raw.txt")]) == 0
    found = capsys.readouterr()
    assert [line.split(" ")[0] for line in found.out.split("\n\n")[0].split("\n")] == ["the", "Dog", "will", "run", "."]
    assert "raw.txt is read as plain text" in found.err


def test_words_are_those_of_the_training_sentences_and_tags_of_all_that_chance_divides(config):
    task, words = TagTask(), [([f"w{i}", "the"], ["N" if i else "X", "D"]) for i in range(40)]
    memory = replace(config, data=replace(config.data, train=MEMORY, scheme="none"))
    data = task.open_in_memory(memory, None, {"train": words})
    trained = {word for sentence in data.train for word in sentence.words}
    assert len(data.valid) == 4 and {*data.lexicon.words.names} == trained and len(trained) == 37
    assert {*data.lexicon.characters.names} == {character for word in trained for character in word}
    assert data.lexicon.tags == ("D", "N", "X")


def test_tags_and_their_probabilities_are_of_one_search(config, monkeypatch):
    task = TagTask()
    tagger, asked = task.build(config, task.open(config, None)), []

    def noted(answer):
        def found(self, sentences, batch_size, num_beams=1):
            asked.append((batch_size, num_beams))
            return [[answer] * len(sentence.words) for sentence in sentences]

        return found

    monkeypatch.setattr(Tagger, "tag_all", noted("O"))
    monkeypatch.setattr(Tagger, "marginals", noted(0.5))
    lines = [*predict(tagger, Predict(data=[["the", "Dog"]], probabilities=True, batch_size=7, num_beams=3))]
    assert asked == [(7, 3), (7, 3)] and json.loads(lines[0])["probabilities"] == [0.5, 0.5]
