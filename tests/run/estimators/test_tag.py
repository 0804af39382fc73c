import pytest
from sklearn import model_selection

import elman
from elman.errors import InputError

X = [["He", "sees", "a", "cat"], ["The", "dog", "runs"], ["A", "cat", "sees", "the", "dog"]] * 4
Y = [["O", "O", "B-NP", "I-NP"], ["B-NP", "I-NP", "O"], ["B-NP", "I-NP", "O", "B-NP", "I-NP"]] * 4
SMALL = {"size": 6, "char_size": 3, "embedding_size": 8, "epochs": 3, "batch_size": 5, "random_state": 3}


def tagger(**settings):
    return elman.SequenceTagger(**{**SMALL, **settings})


def test_it_is_the_tagger_that_elman_train_gives_for_the_same_config_from_a_file(tmp_path):
    pairs = [zip(words, tags, strict=True) for words, tags in zip(X, Y, strict=True)]
    text = "\n\n".join("\n".join(f"{word} {tag}" for word, tag in pair) for pair in pairs)
    (tmp_path / "train.txt").write_text(text + "\n")
    config = elman.TagConfig(
        data={"train": str(tmp_path / "train.txt"), "valid": str(tmp_path / "train.txt"), "batch_size": 5},
        model={"size": 6, "char_size": 3, "embedding_size": 8},
        optim={"lr": 0.005},
        training={"steps": 9, "evaluate_every": 9},
        seed=3,
    )
    model, _ = elman.train(config, out=tmp_path / "run", progress=False)
    fitted = tagger().fit(X, Y)
    assert fitted.model_.marginals(X) == model.marginals(X)
    assert tagger(random_state=4).fit(X, Y).model_.marginals(X) != model.marginals(X)


def test_it_learns_and_scores_spans():
    fitted = tagger(epochs=60, embedding_dropout=0.0, readout_dropout=0.0, word_dropout=0.0).fit(X, Y)
    assert fitted.predict(X) == Y and fitted.score(X, Y) == 1.0
    wrong = [["O"] * len(tags) for tags in Y]
    assert fitted.score(X, wrong) == 0.0  # none of its spans is there


def test_grids_and_cross_validation():
    search = model_selection.GridSearchCV(tagger(), {"size": [2, 6], "crf": [True, False]}, cv=2, error_score="raise")
    search.fit(X, Y)
    assert len(search.cv_results_["params"]) == 4 and len(search.predict(X)) == len(X)
    assert len(model_selection.cross_val_score(tagger(), X, Y, cv=3, error_score="raise")) == 3


@pytest.mark.parametrize(
    ("words", "tags", "message"),
    [
        (X, Y[:-1], "X has 12 sentences and y the tags of 11"),
        ([["a", "b"]], [["N"]], "sentence 0 has 2 words and 1 tags"),
        (["He sees"], [["N", "V"]], "must be a list of words"),
        ([], [], "X is empty"),
        (X, [["N"] * len(tags) for tags in Y], "only one tag"),
    ],
)
def test_what_is_wrong_is_said(words, tags, message):
    with pytest.raises(InputError, match=message):
        tagger().fit(words, tags)
