"""What tags the words of a sentence: words and their characters, a core, and a read-out with a CRF or without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from elman import state as trees
from elman.cells import CELLS, cell
from elman.data import Batch
from elman.errors import InputError
from elman.files.artifact import Content
from elman.files.config import Json, one_of
from elman.model import SequenceModel
from elman.nn.crf import CRF, Allowed, Tags, TagSoftmax
from elman.nn.embed import Embedding
from elman.options import flag, fraction, several, whole
from elman.state import State
from elman.tasks import network
from elman.tasks.network import NetworkConfig
from elman.tasks.predictor import Predictor, evaluating
from elman.tasks.tag import schemes
from elman.tasks.tag.autoregressive import AutoregressiveTagger
from elman.tasks.tag.data import Sentence, TagReader
from elman.tasks.tag.lexicon import CASES, Lexicon, collate
from elman.tasks.tag.word_features import Characters, SentenceEmbedding, WordEmbedding
from elman.training.scores import Scores

EACH = 32  # sentences at a time by default


@dataclass(frozen=True)
class TagModelConfig(NetworkConfig):
    """The settings of the network.

    Args:
        size: units in each layer and direction
        bidirectional: read in both directions
        embedding_size: the width of the embedding of words
        word_dropout: the probability that a word is replaced by the unknown word in training
        vectors: a text file of pretrained word vectors (GloVe, word2vec or fastText, .gz or not); empty for none
        case_size: the width of the embedding of a word's case (lower, UPPER, Title, 42 ...); 0 for none
        feature_size: the width of the embedding of each further column
        char_cell: the cell that reads the characters of a word from both ends
        char_size: the units of that cell; 0 to read no characters
        char_embedding_size: the width of the embedding of characters
        embedding_dropout: the dropout after all embeddings
        readout_dropout: the dropout before the read-out
        crf: score whole sequences of tags by a linear-chain CRF, not each tag by itself
        feedback: feed the previous tag back into a further cell, which reads from left to right; needs crf false
        feedback_size: the width of the embedding of the previous tag
        feedback_sampled: the probability in training that the previous tag is sampled from the model
    """

    cell: str = one_of("lstm", CELLS)
    size: int = 100
    bidirectional: bool = True
    embedding_size: int = 100
    word_dropout: float = 0.05
    vectors: str = ""
    case_size: int = 8
    feature_size: int = 16
    char_cell: str = one_of("lstm", CELLS)
    char_size: int = 25
    char_embedding_size: int = 25
    embedding_dropout: float = 0.5
    readout_dropout: float = 0.5
    crf: bool = True
    feedback: bool = False
    feedback_size: int = 16
    feedback_sampled: float = 0.0


def build(config: TagModelConfig, lexicon: Lexicon) -> SequenceModel | AutoregressiveTagger:
    """The model of a config, with fresh parameters."""
    words = WordEmbedding(lexicon.words.size, config.embedding_size, word_dropout=config.word_dropout)
    case_size, char_size = (whole(f"model.{n}", getattr(config, n), least=0) for n in ("case_size", "char_size"))
    embed = SentenceEmbedding(
        words,
        Embedding(len(CASES), case_size) if case_size else None,
        [Embedding(symbols.size, config.feature_size) for symbols in lexicon.features],
        Characters(lexicon.characters.size, config.char_cell, config.char_embedding_size, char_size)
        if char_size
        else None,
        config.embedding_dropout,
    )
    core = network.core(config, embed.output_size, bidirectional=config.bidirectional)
    H, K, p = core.output_size, len(lexicon.tags), config.readout_dropout
    if not flag("model.feedback", config.feedback):
        return SequenceModel(embed, core, (CRF if flag("model.crf", config.crf) else TagSoftmax)(H, K, dropout=p))
    if config.crf:
        raise InputError("model.feedback and model.crf exclude each other: add --model.crf false")
    size = whole("model.feedback_size", config.feedback_size)
    decoder = cell(config.cell, H + size, config.size, **config.options)
    sampled = fraction("model.feedback_sampled", config.feedback_sampled)
    return AutoregressiveTagger(
        embed, core, decoder, TagSoftmax(decoder.output_size, K, dropout=p), size=size, sampled=sampled
    )


def allowed(lexicon: Lexicon) -> Allowed | None:
    """What the model's scheme can write; None for anything."""
    if lexicon.inner not in ("iob2", "iobes"):
        return None
    ends = (*lexicon.tags, schemes.OUTSIDE)
    table = torch.tensor([[schemes.may_follow(a, b, lexicon.inner) for b in ends] for a in ends])
    return Allowed(table[-1, :-1], table[:-1, :-1], table[:-1, -1])


class Tagger(Predictor[SequenceModel | AutoregressiveTagger]):
    """A network, how it reads and what its tags are called.

    >>> given = [Sentence(["He", "reckons"], ["B-NP", "B-VP"])]
    >>> lexicon = Lexicon.fit(given, ["B-NP", "B-VP"], "iob2", "iob2", 1, True)
    >>> config = TagModelConfig(size=4)
    >>> len(Tagger(build(config, lexicon), config, TagReader(), lexicon).tag(["He", "reckons"]))
    2
    """

    task = "tag"

    config: TagModelConfig
    reader: TagReader
    lexicon: Lexicon

    def __init__(
        self, model: SequenceModel | AutoregressiveTagger, config: TagModelConfig, reader: TagReader, lexicon: Lexicon
    ) -> None:
        super().__init__(model, config=config, reader=reader, lexicon=lexicon)

    def tag(self, words: Sequence[str]) -> list[str]:
        """The tags of one sentence, given as its words."""
        return self.tag_all([words])[0]

    def tag_all(
        self, sentences: Sequence[Sequence[str] | Sentence], batch_size: int = EACH, num_beams: int = 1
    ) -> list[list[str]]:
        """The tags of some sentences: each the same alone and in any batch. Where tags are fed back, decoding keeps
        the `num_beams` most probable sequences."""
        return [self.lexicon.read(path) for path, _ in self._decode(sentences, batch_size, num_beams)]

    def marginals(
        self, sentences: Sequence[Sequence[str] | Sentence], batch_size: int = EACH, num_beams: int = 1
    ) -> list[list[float]]:
        """P of each word's tag (as the model writes tags), given the sentence."""
        return [chances for _, chances in self._decode(sentences, batch_size, num_beams, marginals=True)]

    def _decode(
        self, sentences: Sequence[Sequence[str] | Sentence], batch_size: int, num_beams: int, marginals: bool = False
    ) -> list[tuple[list[int], list[float]]]:
        possible = allowed(self.lexicon)

        def decode(rows: list[Sentence]) -> Iterator[tuple[list[int], list[float]]]:
            x, lengths = collate([self.lexicon.written(sentence) for sentence in rows])
            inputs, lengths = trees.map(lambda leaf: leaf.to(self.device), x), lengths.to(self.device)
            if isinstance(self.model, AutoregressiveTagger):
                paths, chances = self.model.scored(inputs, lengths, num_beams)
            else:
                paths, chances = _best(_tags(self.model, inputs, lengths), possible, marginals)
            for row, sentence in enumerate(rows):
                n = len(sentence.words)
                yield paths[row, :n].tolist(), chances[row, :n].tolist() if marginals else []

        return self.batched(sentences_of(sentences), decode, batch_size, lambda sentence: len(sentence.words))

    def evaluate(
        self, sentences: Sequence[Sentence], batch_size: int = EACH, strict: bool = False, num_beams: int = 1
    ) -> Scores:
        """How good the tags are: of words, and of spans as the scheme has them."""
        return self.scores(sentences, self.tag_all(sentences, batch_size, num_beams), strict)

    def scores(self, sentences: Sequence[Sentence], guess: list[list[str]], strict: bool = False) -> Scores:
        """How good some tags of tagged sentences are."""
        truth = [[*sentence.tags] for sentence in sentences]
        pairs = [(a, b) for x, y in zip(truth, guess, strict=True) for a, b in zip(x, y, strict=True) if a]
        if self.lexicon.scheme == "none":  # words whose tag does not count are left out
            truth, guess = [[a for a, _ in pairs]], [[b for _, b in pairs]]
        counts = schemes.count(truth, guess, self.lexicon.scheme, strict)
        all_of_them = schemes.total(counts)
        answers = [(a, b) for a, b in pairs if a != "_"]  # "_" is the blank of synthetic data and of CoNLL-U
        numbers = {
            "accuracy": sum(a == b for a, b in pairs) / max(1, len(pairs)),
            "precision": all_of_them.precision,
            "recall": all_of_them.recall,
            "f1": all_of_them.f1,
            "words": len(pairs),
            "sentences": len(sentences),
        }
        if len(answers) < len(pairs):
            numbers["answer_accuracy"] = sum(a == b for a, b in answers) / max(1, len(answers))
        labels: dict[str, Json] = {
            name: {"precision": c.precision, "recall": c.recall, "f1": c.f1, "support": c.there}
            for name, c in counts.items()
        }
        details: dict[str, Json] = {"scheme": self.lexicon.scheme, "strict": strict, "labels": labels}
        spans = self.lexicon.scheme != "none"
        primary = "f1" if spans else "answer_accuracy" if "answer_accuracy" in numbers else "accuracy"
        secondary = ("accuracy", "precision", "recall") if spans else ()
        return Scores(numbers, primary, larger_is_better=True, secondary=secondary, details=details)

    @classmethod
    def parts(cls, content: Content) -> tuple[TagModelConfig, TagReader, Lexicon]:
        config, reader = TagModelConfig(**content["config"]), dict(content["reader"])
        reader["features"] = tuple(reader["features"])
        return config, TagReader(**reader), Lexicon.from_json(content["lexicon"])

    @classmethod
    def network(
        cls, config: TagModelConfig, reader: TagReader, lexicon: Lexicon
    ) -> SequenceModel | AutoregressiveTagger:
        return build(config, lexicon)

    def __repr__(self) -> str:
        c = self.config
        ways, kind = "bidirectional " if c.bidirectional else "", "crf" if c.crf else "softmax"
        return f"Tagger({c.layers} x {ways}{c.cell} {c.size}, {kind}, {self.parameter_count:,} parameters)"

    def about(self) -> list[list[str]]:
        words, tags = len(self.lexicon.words.names), len(self.lexicon.tags)
        return [["words", f"{words:,}"], ["tags", f"{tags} ({self.lexicon.scheme})"]]


def sentences_of(rows: Sequence[Sequence[str] | Sentence]) -> list[Sentence]:
    """Sentences, each as a list of words: a text would be tagged letter by letter."""
    sentences = []
    for i, words in enumerate(several("sentences", rows, "sentences, each a list of words")):
        if not isinstance(words, str | Sentence):
            words = several(f"sentence {i}", words, "words")
        sentences.append(words if isinstance(words, Sentence) else Sentence(words, where=f"sentence {i}"))
    for sentence in sentences:
        if isinstance(sentence.words, str) or not all(isinstance(word, str) for word in sentence.words):
            raise InputError(
                f"a sentence is {str(sentence.words)[:60]!r}; it must be a list of words, each a text. Where spaces "
                "separate words, text.split() gives them."
            )
    return sentences


def tagged_sentences(pairs: Sequence[tuple[Sequence[str], Sequence[str]] | Sentence]) -> list[Sentence]:
    """Pairs of the words of a sentence and their tags.

    >>> tagged_sentences([(["He", "ran"], ["N", "V"])])[0].tags
    ['N', 'V']
    """
    tagged = []
    for i, pair in enumerate(several("data", pairs, "pairs: the words of a sentence, and their tags")):
        if isinstance(pair, Sentence):
            tagged.append(pair)
            continue
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InputError(f"sentence {i} is {str(pair)[:60]!r}; it must be a pair, its words and their tags")
        words, tags = (sentences_of([part])[0].words for part in pair)
        if len(words) != len(tags):
            raise InputError(f"sentence {i} has {len(words)} words and {len(tags)} tags; each word needs one")
        tagged.append(Sentence(words, tags, where=f"sentence {i}", number=i))
    return tagged


def _best(predicted: Tags, possible: Allowed | None, marginals: bool) -> tuple[Tensor, Tensor]:
    """The best tags (B, T), and where they are asked for the probabilities of each (B, T)."""
    path = predicted.best_path(possible)
    return path, predicted.marginals().gather(-1, path.clamp(min=0)[..., None])[..., 0] if marginals else path


@torch.no_grad()
def panels(predictor: Tagger, batch: Batch) -> tuple[dict[str, object], ...]:
    """What the lens shows of a tagger: P of each tag of the first sentence, and the tags that are chosen."""
    model, lexicon = predictor.model, predictor.lexicon
    assert isinstance(model, SequenceModel)
    with evaluating(model):
        predicted = _tags(model, batch.x, batch.lengths)
    n, chances, path = int(batch.lengths[0]), predicted.marginals(), predicted.best_path(allowed(lexicon))
    used = chances[0, :n].amax(0).topk(min(12, len(lexicon.tags))).indices.sort().values
    ribbon: dict[str, object] = {
        "title": "CRF marginals" if predictor.config.crf else "Probabilities of tags",
        "rows": [lexicon.tags[i] for i in used.tolist()],
        "values": chances[0, :n, used].T.tolist(), "path": [lexicon.tags[i] for i in path[0, :n].tolist()],
    }  # fmt: skip
    return (ribbon,)


def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, int, State | None]:
    """- sum of log P(tags | sentence), and the number of words that count."""
    y, lengths = batch.y, batch.lengths
    assert isinstance(y, Tensor) and isinstance(model, SequenceModel | AutoregressiveTagger)
    if isinstance(model, AutoregressiveTagger):
        predicted: Tags = model.forced(batch.x, y, lengths)
    else:
        predicted = _tags(model, batch.x, lengths)
    return -predicted.log_prob(y).sum(), int((y >= 0).sum()), None


def _tags(model: SequenceModel, x: State, lengths: Tensor) -> Tags:
    """What a model says of some sentences; its read-out is one of those of `build`."""
    return cast(Tags, model.scan(x, lengths=lengths)[0])
