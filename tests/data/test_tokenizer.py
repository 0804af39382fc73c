"""Vocabularies that come with pretrained models: the tokens of the package tokenizers, and those of RWKV."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from elman.data import vocabulary
from elman.data.tokenizer import Tokenizer, World
from elman.errors import FileError, InputError

tokenizers = pytest.importorskip("tokenizers")
TEXT = "the thin thread,  thicker than\n that — é 😀 "


def byte_level() -> str:
    """As the tokenizers of the family of GPT-2."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<a>", "<b>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer.to_str()


def metaspace() -> str:
    """As those of the family of Llama: a space is put before a text, and taken away when it is decoded."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    letters = sorted({*TEXT, "▁"} - {" "})
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, "th", "▁th"]
    merges = [("t", "h"), ("▁", "th")]
    tokenizer = Tokenizer(
        models.BPE({t: i for i, t in enumerate(dict.fromkeys(tokens))}, merges, unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer.to_str()


def world() -> World:
    return World([*(bytes([byte]) for byte in range(256)), b"th", b"the", b" th", " é".encode()], 300)


def all_kinds() -> list[vocabulary.Vocabulary]:
    return [Tokenizer(byte_level(), 310, 1), Tokenizer(metaspace(), 320, 2), world()]


@pytest.mark.parametrize("number", range(3))
def test_a_text_comes_back_whole_and_piece_by_piece(number: int) -> None:
    symbols = all_kinds()[number]
    ids = symbols.encode(TEXT)
    assert symbols.decode(ids.tolist()) == TEXT and ids.dtype == np.int64
    assert "".join(symbols.spell(ids.tolist())) == TEXT
    decoder = symbols.decoder(TEXT)
    continued = symbols.encode(" the")
    assert TEXT + "".join(map(decoder.push, continued.tolist())) in (f"{TEXT} the", f"{TEXT}  the")


@pytest.mark.parametrize("number", range(3))
def test_a_text_goes_on_where_it_was_cut(number: int) -> None:
    """At every token: with the spaces between, and characters of several tokens whole."""
    symbols, text = all_kinds()[number], "the thin 日本 🙂 thread"
    ids = symbols.encode(text).tolist()
    assert "".join(symbols.spell(ids)) == text
    for cut in range(len(ids) + 1):
        before = symbols.decode(ids[:cut])
        if "\ufffd" not in before:
            decoder = symbols.decoder(before)
            assert before + "".join(map(decoder.push, ids[cut:])) == text, cut


@pytest.mark.parametrize("number", range(3))
def test_it_comes_back_from_json(number: int) -> None:
    symbols = all_kinds()[number]
    again = vocabulary.from_json(symbols.to_json())
    assert again.kind == symbols.kind and again.size == symbols.size
    assert np.array_equal(again.encode(TEXT), symbols.encode(TEXT))


@pytest.mark.parametrize("number", range(3))
def test_a_text_in_pieces_has_the_symbols_of_the_whole(number: int) -> None:
    symbols, text = all_kinds()[number], TEXT * 20
    for seed in range(5):
        places = sorted(random.Random(seed).sample(range(len(text)), 9))
        pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
        parts = [symbols.encode(piece) for piece in vocabulary.rejoin(pieces, symbols.cut)]
        assert np.array_equal(np.concatenate(parts), symbols.encode(text))


def changed(**parts: dict | None) -> Tokenizer:
    """That of GPT-2 with other first steps."""
    return Tokenizer(json.dumps({**json.loads(byte_level()), **parts}), 310, 1)


LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
SPLIT = {"type": "Split", "pattern": {"Regex": " ?[^ ]+"}, "behavior": "Isolated", "invert": False}
WHOLE = {**LEVEL, "use_regex": False}


def test_it_is_cut_where_its_first_step_splits_it_and_changes_nothing() -> None:
    for parts in (
        {}, {"normalizer": {"type": "NFC"}}, {"normalizer": None},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [SPLIT, WHOLE]}},
    ):  # fmt: skip
        assert changed(**parts).cut("the thin") == vocabulary.cut_at_spaces("the thin") > 0, parts
    for parts in (
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
        {"normalizer": {"type": "Lowercase"}},
        {"pre_tokenizer": {**LEVEL, "add_prefix_space": True}},
        {"pre_tokenizer": WHOLE},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [WHOLE, SPLIT]}},
        {"pre_tokenizer": None},
    ):
        assert changed(**parts).cut("the thin") == 0, parts


def test_bytes_that_are_no_characters_are_read_where_tokens_are_bytes_and_refused_elsewhere() -> None:
    text = b"a\xffb".decode(errors="surrogateescape")
    assert [world().bytes_of(i) for i in world().encode(text)] == [b"a", b"\xff", b"b"]
    with pytest.raises(InputError, match="bytes that are not UTF-8"):
        Tokenizer(byte_level(), 310, 1).encode(text)


def test_what_ends_a_text_is_the_boundary() -> None:
    """Their number 1 and their number 0 have changed places."""
    symbols = Tokenizer(byte_level(), 310, 1)
    theirs = tokenizers.Tokenizer.from_str(byte_level()).encode("the<a>the<b>", add_special_tokens=False).ids
    assert symbols.encode("the<a>the<b>").tolist() == [{0: 1, 1: 0}.get(i, i) for i in theirs]
    assert symbols.decode(symbols.encode("the<a>").tolist()) == "the<a>"
    assert symbols.decode([309]) == ""  # the model may have more symbols than there are tokens


def test_the_longest_token_is_taken() -> None:
    assert [world().bytes_of(i) for i in world().encode("the th é")] == [b"the", b" th", " é".encode()]


def test_the_file_of_rwkv_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rwkv_vocab_v20230424.txt"
    path.write_text("".join(f"{i} {t!r} {len(t)}\n" for i, t in enumerate([b"\x00", "a b", b"\xff\n"], 1)))
    found = World.read(path, 300)
    assert [found.bytes_of(i) for i in (0, 1, 2, 3, 9)] == [b"", b"\x00", b"a b", b"\xff\n", b""]


@pytest.mark.parametrize(
    "line",
    ["1 __import__('os') 3", "0 'a' 1", "-1 'a' 1", "1 'ab' 1", "1 'é' 1", "1 2 2", "1 [97] 1", "1 'a'", "1 'a"],
)
def test_a_vocabulary_that_is_cut_off_or_something_else_is_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "vocabulary.txt").write_text(f"{line}\n")
    with pytest.raises(FileError, match="not a vocabulary of RWKV"):
        World.read(tmp_path / "vocabulary.txt", 300)


@pytest.mark.slow
def test_the_tokenizer_of_the_package_finds_the_same(tmp_path: Path) -> None:
    package = pytest.importorskip("rwkv.rwkv_tokenizer")
    path = Path(package.__file__).with_name("rwkv_vocab_v20230424.txt")
    text = f"{TEXT}\n\n    def f(x): return x ** 2  # 你好, wörld\t" * 3
    assert World.read(path, 65536).encode(text).tolist() == package.TRIE_TOKENIZER(str(path)).encode(text)


def test_none_is_made_of_a_text() -> None:
    for kind in (Tokenizer, World):
        with pytest.raises(InputError, match="comes with a model that was converted"):
            kind.fit([TEXT], 1, 300)


def test_a_text_is_read_whole_though_the_file_cuts_and_fills_texts() -> None:
    """`save_pretrained` writes the truncation and padding of the last call into the file."""
    filled = tokenizers.Tokenizer.from_str(byte_level())
    filled.enable_truncation(4)
    filled.enable_padding(length=100)
    assert filled.encode(TEXT).ids != tokenizers.Tokenizer.from_str(byte_level()).encode(TEXT).ids
    symbols = Tokenizer(filled.to_str(), 310, 1)
    for text in (TEXT, "the"):
        assert symbols.encode(text).tolist() == Tokenizer(byte_level(), 310, 1).encode(text).tolist()


def test_the_tokenizer_of_a_larger_model_is_refused() -> None:
    largest = tokenizers.Tokenizer.from_str(byte_level()).get_vocab_size() - 1
    Tokenizer(byte_level(), largest + 1, 1)
    with pytest.raises(FileError, match=f"up to number {largest:,}, and the model {largest:,} symbols"):
        Tokenizer(byte_level(), largest, 1)


def test_a_file_that_is_no_tokenizer_is_refused() -> None:
    with pytest.raises(FileError, match="not one that the package tokenizers reads"):
        Tokenizer("{}", 300, 0)
