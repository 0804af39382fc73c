"""What is given where a list is meant: one text is refused, which would be read letter by letter, and what has names
before it has values."""

import pandas as pd
import pytest

from elman.data import VOCABULARIES
from elman.data.text import open_text
from elman.decoding.sample import Sampling
from elman.errors import InputError
from elman.tasks.classify import model as classifier
from elman.tasks.classify.data import Reader, Row
from elman.tasks.classify.inputs import Labels, TextInputs
from elman.tasks.tag import model as tagger
from elman.tasks.tag.data import Sentence, TagReader
from elman.tasks.tag.lexicon import Lexicon
from elman.tasks.text import lm
from elman.tasks.translate import data
from elman.tasks.translate import model as translator
from elman.tasks.translate.data import Pair, PairReader
from elman.tasks.tree import model as tree_labeller
from elman.tasks.tree.data import TreeReader, read_brackets

WORDS = "The cat sat"


@pytest.fixture(scope="module")
def tags():
    lexicon = Lexicon.fit([Sentence(WORDS.split(), ["D", "N", "V"])], ["D", "N", "V"], "none", "none", 1, True)
    config = tagger.TagModelConfig(size=4, embedding_size=4, char_size=2)
    return tagger.Tagger(tagger.build(config, lexicon), config, TagReader(), lexicon)


@pytest.fixture(scope="module")
def classes():
    rows = [Row(text, (label,), "here") for text, label in [("good", "pos"), ("bad", "neg")] * 2]
    inputs, labels, config = (
        TextInputs.fit(rows, "word", 1, 0, False), Labels.fit(rows, "class"), classifier.ClassifyModelConfig(size=4),
    )  # fmt: skip
    return classifier.Classifier(classifier.build(config, inputs, labels), config, Reader(), inputs, labels)


@pytest.fixture(scope="module")
def translates():
    symbols = data.fit([Pair("a b", "b a", ""), Pair("b a", "a b", "")], "char", True, 1, 0)
    config = translator.TranslateModelConfig(size=4, embedding_size=4)
    return translator.Translator(translator.build(config, symbols), config, PairReader(), symbols)


@pytest.fixture(scope="module")
def writes():
    config = lm.LMModelConfig(size=4, layers=1)
    return lm.LanguageModel(lm.build(config, 257), VOCABULARIES["byte"](), config)


@pytest.fixture(scope="module")
def trees():
    known = read_brackets("(3 (2 It) (4 works)) (1 (2 It) (0 fails))")
    lexicon = tree_labeller.TreeLexicon.fit(known, "nodes", 1, True)
    config = tree_labeller.TreeModelConfig(size=4, embedding_size=3)
    model = tree_labeller.TreeModel(config, lexicon)
    return tree_labeller.TreeLabeller(model, config, TreeReader(), lexicon), known


def test_words(tags):
    assert len(tags.tag(WORDS.split())) == 3 and len(tags.tag_all([("The",), Sentence(["cat"])])) == 2
    for call in (lambda: tags.tag(WORDS), lambda: tags.tag_all([WORDS]), lambda: tags.marginals([WORDS, "a"])):
        with pytest.raises(InputError, match=r"'The cat sat'; it must be a list of words.*text\.split\(\)"):
            call()
    with pytest.raises(InputError, match="it must be a list of words"):
        tags.tag_all(WORDS.split())  # the words of one sentence, not a list of sentences
    with pytest.raises(InputError, match=r"sentences is a string, .* must be a list of sentences"):
        tags.tag_all(WORDS)
    with pytest.raises(InputError, match="it must be a list of words"):
        tags.tag([1, 2])


def test_texts(classes, translates, writes):
    assert len(classes.predict(["good"])) == 1 and len(writes.generate_batch(["a"], [0], max_new_tokens=1)) == 1
    for call in (
        lambda: classes.predict("good"),
        lambda: classes.predict_proba("good"),
        lambda: translates.translate("a b"),
        lambda: translates.translations("a b", translator.Search()),
        lambda: translates.samples("a b", Sampling()),
        lambda: translates.translations(["a b"], translator.Search(), prefixes="b"),
        lambda: writes.generate_batch("ab", [0, 1]),
        lambda: writes.start_batch("ab"),
        lambda: writes.read("a", writes.init_state()),
        lambda: open_text("embedded"),
    ):
        with pytest.raises(InputError, match=r"is a string, .*; it must be a list of "):
            call()


NAMED = [pd.DataFrame({"text": ["good"]}), {"text": ["good"]}, {"good", "bad"}, frozenset(["good"])]


@pytest.mark.parametrize("given", NAMED, ids=lambda given: type(given).__name__)
def test_what_has_names_or_no_order_is_no_list(given, tags, classes, translates, writes):
    for call in (
        lambda: classes.predict(given),
        lambda: classes.predict_proba(given),
        lambda: tags.tag(given),
        lambda: tags.tag_all(given),
        lambda: translates.translate(given),
        lambda: writes.start_batch(given),
    ):
        with pytest.raises(InputError, match=rf"is a {type(given).__name__}, .*; it must be a list of "):
            call()


def test_a_generator_is_read_once(tags, classes, translates, writes):
    assert tags.tag(word for word in WORDS.split()) == tags.tag(WORDS.split())
    assert tags.tag_all(iter([["The"], iter(["cat"])])) == tags.tag_all([["The"], ["cat"]])
    assert classes.predict(iter(["good", "bad"])) == classes.predict(["good", "bad"])
    assert translates.translate(iter(["a b"])) == translates.translate(["a b"])
    with pytest.raises(InputError, match="seeds is a int; it must be a list of seeds, one for each prompt"):
        writes.generate_batch(["a", "b"], 3)
    made = writes.generate_batch(iter(["a", "b"]), [0, 1], max_new_tokens=2)
    assert made == writes.generate_batch(["a", "b"], [0, 1], max_new_tokens=2)


def test_what_is_no_list_at_all(tags, classes):
    for call in (lambda: tags.tag(3), lambda: tags.tag_all(None), lambda: classes.predict(1.5)):
        with pytest.raises(InputError, match=r"is a (int|NoneType|float); it must be a list of "):
            call()


def test_a_list_where_one_text_is_meant(translates, writes):
    for call in (
        lambda: writes.generate(["the "]),
        lambda: writes.start(3),
        lambda: writes.score(["a"]),
        lambda: writes.generate_batch([["a"]], [0]),
        lambda: translates.translate([1]),
        lambda: translates.translations(["a b"], translator.Search(), prefixes=[2]),
    ):
        with pytest.raises(InputError, match=r" is a (list|int); it must be a string"):
            call()


def test_trees(trees):
    labeller, known = trees
    assert len(labeller.labels(known)) == 2
    for given in ("(3 (2 It) (4 works))", ["(3 (2 It) (4 works))"], known[0]):
        with pytest.raises(InputError, match=r"trees must be a list of trees, as .*read_brackets"):
            labeller.labels(given)
