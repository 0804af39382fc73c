import copy
import inspect
import itertools
import json
import math

import numpy as np
import pytest
import torch

from elman import kernels
from elman import state as states
from elman.compose import GLU, Norm, Residual, blocks
from elman.data.cache import Encoded, encode_string
from elman.data.vocabulary import BOUNDARY, Bytes, Characters, Words
from elman.errors import FileError, InputError
from elman.stream import Stream
from elman.tasks import load, network
from elman.tasks.text import markov as markov_task
from elman.tasks.text import model as text
from elman.tasks.text.generation import prompt_ids
from elman.tasks.text.kneser_ney import Markov
from elman.tasks.text.lm import LanguageModel, LMModelConfig, build
from elman.tasks.text.model import Score

TEXT = "to be, or not to be: that is the question. " * 3


def lm_of(vocabulary=None, seed=0, **config):
    torch.manual_seed(seed)
    vocabulary = vocabulary or Characters("".join(sorted(set(TEXT))))
    settings = LMModelConfig(**{"size": 8, "layers": 2, **config})
    model = build(settings, vocabulary.size).eval()
    if hasattr(getattr(model, "readout", None), "linear"):
        model.readout.linear.bias.data[:2] = -9.0  # as if trained: no boundary inside a text, no unknown symbol
    if settings.learn_initial_state:
        torch.nn.init.normal_(model.core.initial_state)
    return LanguageModel(model, vocabulary, settings)


def markov(words=TEXT, vocabulary=None, order=3):
    vocabulary = vocabulary or Characters("".join(sorted(set(words))))
    model = Markov(vocabulary.size, order)
    model.fit(encode_string(words, vocabulary).ids)
    return markov_task.MarkovModel(model, vocabulary, markov_task.MarkovModelConfig(order))


MODELS = {
    "gru": lm_of,
    "tied": lambda: lm_of(tied=True, cell="lstm"),
    "adaptive": lambda: lm_of(cutoffs=[4, 8], cell="mingru", block="plain"),
    "blocks": lambda: lm_of(cell="s4d"),
    "window": lambda: lm_of(cell="window", layers=1),
    "residual": lambda: lm_of(residual=True, norm="layer", cell="lru"),
    "learned start": lambda: lm_of(cell="lstm", learn_initial_state=True),
    "markov": markov,
}


@pytest.fixture(params=MODELS)
def lm(request):
    return MODELS[request.param]()


def test_a_saved_model_is_the_same_model(lm, tmp_path):
    lm.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert type(again) is type(lm)
    assert again.score(TEXT)[0] == lm.score(TEXT)[0]
    assert again.generate("to", max_new_tokens=30, seed=4) == lm.generate("to", max_new_tokens=30, seed=4)


def test_a_score_is_the_product_of_its_parts(lm):
    whole, state = lm.score(TEXT)
    first, middle = lm.score(TEXT[:50])
    second, end = lm.score(TEXT[50:], middle)
    assert whole.nats == pytest.approx(first.nats + second.nats, rel=1e-6)
    assert (whole.tokens, whole.characters) == (len(TEXT), len(TEXT))
    torch.testing.assert_close(end.core, state.core)
    assert torch.equal(end.token, state.token) and torch.equal(end.seen, state.seen)


def test_a_score_is_the_sum_of_log_probs_step_by_step():
    lm = lm_of(dtype="float64")
    ids = encode_string("not to be", lm.vocabulary).ids
    state, nats = lm.model.init_state(1), 0.0
    for before, after in itertools.pairwise(ids):
        predicted, state = lm.model.step(torch.tensor([before]), state)
        nats -= float(torch.log_softmax(predicted.logits, -1)[0, after].detach())
    assert lm.score("not to be")[0].nats == pytest.approx(nats, rel=1e-12)


@pytest.mark.parametrize("threads", [1, 2])
def test_evaluate_does_not_depend_on_how_it_is_cut(threads):
    lm = lm_of()
    lines = np.concatenate([[0], *([*lm.vocabulary.encode(line), 0] for line in TEXT.split(" ") if line)])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for encoded in (encode_string(TEXT, lm.vocabulary), Encoded(lines, len(TEXT), 0)):
            scores = [lm.evaluate(encoded, *cut) for cut in ((1, 512), (1, 1), (3, 7), (64, 1), (64, 512))]
            assert all(s.tokens == encoded.tokens for s in scores)
            values = [s.nats_per_token for s in scores]
            assert max(values) - min(values) < 1e-6
            reference = lm_of()  # one unit at a time, each from its own boundary
            with kernels.use("reference"):
                assert values[0] == pytest.approx(reference.evaluate(encoded, 1, 512).nats_per_token, abs=1e-6)
    finally:
        torch.set_num_threads(before)


def test_a_large_vocabulary_is_evaluated_in_smaller_pieces(monkeypatch):
    lm = lm_of()
    ids = np.concatenate([[0], *([*lm.vocabulary.encode(line), 0] for line in TEXT.split(" ") if line)])
    encoded, scan, sizes = Encoded(ids, len(TEXT), 0), lm.model.scan, []
    whole = lm.evaluate(encoded)
    monkeypatch.setattr(text, "LOGITS", 50 * lm.vocabulary.size)
    monkeypatch.setattr(lm.model, "scan", lambda x, *a, **k: sizes.append(x.numel()) or scan(x, *a, **k))
    assert lm.evaluate(encoded).nats == pytest.approx(whole.nats, abs=1e-6)
    assert 25 < max(sizes) <= 50


def test_a_large_vocabulary_is_read_in_smaller_pieces(lm, monkeypatch):
    def everything():
        carried = lm.read([TEXT, "a"], lm.init_state([1, 2]))
        return lm.score(TEXT)[0].nats, *states.leaves(carried.core)

    wanted, scan, sizes = everything(), lm.model.scan, []
    monkeypatch.setattr("elman.tasks.text.model.LOGITS", 10 * lm.vocabulary.size)
    monkeypatch.setattr(lm.model, "scan", lambda x, *a, **k: sizes.append(x.numel()) or scan(x, *a, **k))
    for given, want in zip(everything(), wanted, strict=True):
        torch.testing.assert_close(torch.as_tensor(given), torch.as_tensor(want))
    assert max(sizes) == 10


@pytest.mark.skipif(kernels.active() != "native", reason="weights of fewer bits need native kernels")
@pytest.mark.parametrize("settings", [{}, {"cutoffs": [4, 8]}], ids=["softmax", "adaptive"])
@pytest.mark.parametrize("prompt", ["to be", TEXT[:100]], ids=["few", "many"])
def test_a_prompt_is_read_with_the_weights_that_generate_has(settings, prompt):
    lm = lm_of(**settings)
    read = lm.read([prompt, "b"], lm.init_state([0, 1]), weights="int8").core
    stream = Stream(lm.model, 2, "int8")
    symbols = [BOUNDARY, *prompt_ids(lm.vocabulary, prompt)][:-1]
    stream.step(torch.tensor([BOUNDARY, BOUNDARY]))
    for symbol in symbols[1:]:
        stream.step(torch.tensor([int(symbol)]), [0])
    assert all(map(torch.equal, states.leaves(read), states.leaves(stream.state)))
    full = lm.read([prompt, "b"], lm.init_state([0, 1])).core
    assert not any(map(torch.equal, states.leaves(read), states.leaves(full)))


def test_independent_lines_are_scored_as_if_alone():
    lm = lm_of(dtype="float64")
    ids = [lm.vocabulary.encode(line) for line in ("to be", "or", "not to be")]
    together = lm.evaluate(Encoded(np.concatenate([[0], *([*i, 0] for i in ids)]), 20, 0), 2, 4)
    alone = [lm.evaluate(Encoded(np.concatenate([[0], i, [0]]), 10, 0)).nats for i in ids]
    assert together.nats == pytest.approx(sum(alone), rel=1e-12)


def test_the_definitions():
    score = Score(nats=math.log(2) * 30, tokens=10, characters=40, unknown=2)
    assert score.bits_per_token == pytest.approx(3)
    assert score.perplexity == pytest.approx(8)
    assert score.bits_per_character == pytest.approx(0.75)
    assert score.unknown_rate == 0.2
    assert json.loads(json.dumps(score.to_json()))["nats_per_token"] == pytest.approx(3 * math.log(2))


def test_a_uniform_model_has_the_perplexity_of_its_vocabulary():
    lm = lm_of()
    lm.model.readout.linear.weight.data.zero_()
    lm.model.readout.linear.bias.data.zero_()
    assert lm.score(TEXT)[0].perplexity == pytest.approx(lm.vocabulary.size, rel=1e-5)


def test_prompts_in_a_batch_give_what_they_give_alone(lm):
    prompts, seeds = ["to be", "", "question"], [5, 6, 5]
    settings = {"max_new_tokens": 25, "temperature": 0.9, "top_p": 0.95}
    together = lm.generate_batch(prompts, seeds, **settings)
    assert together == [lm.generate(p, seed=s, **settings) for p, s in zip(prompts, seeds, strict=True)]
    assert len(set(together)) > 1


def test_a_row_that_ends_in_a_batch_has_the_state_that_it_has_alone(lm):
    prompts, seeds, settings = ["to be", "or", "", "that"], [1, 2, 3, 4], {"stop": ["t", "e"], "max_new_tokens": 25}
    together = lm.start_batch(prompts, seeds=seeds, **settings)
    assert list(together)
    lengths = set()
    for row, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
        alone = lm.start(prompt, seed=seed, **settings)
        lengths.add(len(list(alone)))
        given, wanted = states.leaves(states.take(together.state, [row])), states.leaves(alone.state)
        assert all(map(torch.allclose, given, wanted))
    assert len(lengths) > 1


def test_a_state_goes_on_as_if_nothing_had_happened(lm, tmp_path):
    settings = {"temperature": 0.9, "repetition_penalty": 1.1}
    texts = ((seed, lm.generate("to", max_new_tokens=30, seed=seed, **settings)) for seed in range(99))
    seed, whole = next((seed, text) for seed, text in texts if len(text) == 30)  # some end earlier
    first = lm.start("to", max_new_tokens=12, seed=seed, **settings)
    text = "".join(piece for (piece,) in first)
    states.save(tmp_path / "here.safetensors", first.state)
    state = states.load(tmp_path / "here.safetensors", lm.init_state([]))
    assert text + lm.generate(state=state, max_new_tokens=18, **settings) == whole


def test_beams_find_a_likelier_text_and_carry_its_state(lm):
    greedy = lm.generate("to", max_new_tokens=8, temperature=0)
    generation = lm.start("to", max_new_tokens=8, num_beams=6)
    ((beams,),) = list(generation)
    _, prompt = lm.score("to")
    assert len(beams) == len(greedy) == 8  # the text has no end, so neither has what is generated
    assert lm.score(beams, prompt)[0].nats <= lm.score(greedy, prompt)[0].nats + 1e-9
    go_on = lm.generate(state=generation.state, max_new_tokens=5, temperature=0)
    assert go_on == lm.generate("to" + beams, max_new_tokens=5, temperature=0)


def test_stop_strings_end_the_text():
    lm = markov()
    text = lm.generate("to", max_new_tokens=300, stop="question", seed=1)
    assert text.endswith("question") and text.count("question") == 1
    beams = lm.generate("to", max_new_tokens=40, num_beams=3, stop=[":", "."], length_penalty=0)
    assert beams[-1] in ":." and sum(map(beams.count, ":.")) == 1


def test_pieces_are_the_text_and_whole_characters():
    vocabulary = Bytes()
    lm = markov("né à côté " * 30, vocabulary, 4)
    pieces = list(lm.generate_pieces("n", max_new_tokens=40, seed=2))
    assert "".join(pieces) == lm.generate("n", max_new_tokens=40, seed=2)
    assert "�" not in "".join(pieces) and "" in pieces  # the first byte of é says nothing yet


def test_unknown_words_are_counted():
    lm = lm_of(Words(["be", "to"]))
    assert lm.score("to be zebra")[0].unknown_rate == pytest.approx(1 / 3)


def test_bad_requests(lm):
    for settings, word in (
        ({"max_new_tokens": -1}, "max_new_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"num_beams": 0}, "num_beams"),
        ({"num_beams": 2, "top_k": 3}, "does not sample"),
        ({"stop": ""}, "stop"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**70}, "seed"),
        ({"prompt": "ZZ"}, "'Z'"),
    ):
        with pytest.raises(InputError, match=word):
            lm.generate(**settings)
    assert lm.generate("to", max_new_tokens=0) == ""


def test_bad_folders(tmp_path):
    lm_of().save(tmp_path / "m")
    (tmp_path / "m" / "checksums.json").unlink()  # they would notice first
    with pytest.raises(FileError, match="no elman-model"):
        LanguageModel.load(tmp_path)
    about = json.loads((tmp_path / "m" / "model.json").read_text())
    weights = (tmp_path / "m" / "model.safetensors").read_bytes()
    (tmp_path / "m" / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(FileError, match="truncated"):
        LanguageModel.load(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").write_bytes(weights)
    for change, word in (
        ({"version": 99}, "newer version"),
        ({"format": "something"}, "is not an elman-model"),
        ({"config": {**about["config"], "size": 9}}, "not those of the model"),
        ({"config": {"sizes": 9}}, "not a model that this version knows"),
        ({"vocabulary": {"kind": "odd"}}, "odd"),
    ):
        (tmp_path / "m" / "model.json").write_text(json.dumps({**about, **change}))
        with pytest.raises((FileError, KeyError), match=word):
            LanguageModel.load(tmp_path / "m")
    (tmp_path / "m" / "model.json").write_text("{")
    with pytest.raises(FileError, match="truncated"):
        LanguageModel.load(tmp_path / "m")


def test_weights_of_another_model(tmp_path):
    markov().save(tmp_path / "markov")
    lm_of().save(tmp_path / "gru")
    for a, b in (("gru", "markov"), ("markov", "gru")):
        (tmp_path / a / "checksums.json").unlink()  # they would notice first
        (tmp_path / a / "model.safetensors").rename(tmp_path / a / "own")
        (tmp_path / a / "model.safetensors").write_bytes((tmp_path / b / "model.safetensors").read_bytes())
        with pytest.raises(FileError, match="not those of the model"):
            load(tmp_path / a)
        (tmp_path / a / "own").rename(tmp_path / a / "model.safetensors")


def test_build_says_what_does_not_go_together():
    with pytest.raises(InputError, match="exclude each other"):
        build(LMModelConfig(tied=True, cutoffs=[2]), 9)
    with pytest.raises(KeyError, match="float16"):
        build(LMModelConfig(dtype="float16"), 9)
    with pytest.raises(InputError, match="elman train --task markov"):
        build(LMModelConfig(cell="markov"), 9)


def words():
    vocabulary = Words.fit(["the cat sat on the mat .\nthe dog sat ."], 1, 0)
    return markov("the cat sat on the mat .\nthe dog sat .\n" * 9, vocabulary, 3)


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"num_beams": 2}], ids=["greedy", "beams"])
def test_a_word_that_follows_a_prompt_is_set_apart_from_it(settings):
    lm = words()
    settings |= {"max_new_tokens": 4}
    assert lm.generate("the cat", **settings) == " sat on the mat"
    assert lm.generate("the cat ", **settings) == "sat on the mat"
    assert lm.generate("the dog sat .\n", **settings).startswith("the ")
    first = lm.start("the cat", **{**settings, "max_new_tokens": 1})
    assert "".join(piece for (piece,) in first) == " sat"
    assert lm.generate(state=first.state, **settings) == " on the mat ."


def test_a_seed_that_is_given_with_a_state_forks_it():
    lm = lm_of()
    start = lm.start("to be", max_new_tokens=0, seed=3).state
    texts = {seed: lm.generate(state=start, seed=seed, max_new_tokens=20) for seed in (None, 3, 4, 5)}
    assert texts[None] == texts[3] == lm.generate("to be", seed=3, max_new_tokens=20)
    assert len(set(texts.values())) == 3


def test_behind_a_boundary_a_new_sequence_begins():
    """As in training, where the state is reset there: a state that ended with one knows nothing of what was before."""
    lm = lm_of()
    _, read = lm.score("to be")
    ended = read._replace(token=torch.zeros(1, dtype=torch.int64))
    assert lm.generate(state=ended, max_new_tokens=9, seed=2) == lm.generate(max_new_tokens=9, seed=2)
    assert lm.score("or not", ended)[0] == lm.score("or not")[0]
    beams = {"num_beams": 3, "max_new_tokens": 4}
    assert lm.generate("no", state=ended, **beams) == lm.generate("no", **beams)


def test_a_setting_that_generate_does_not_have_is_refused_with_those_it_has():
    wanted = r"generating has no setting 'max_tokens'; there are max_new_tokens, .* Did you mean 'max_new_tokens'\?"
    lm = lm_of(Bytes(), layers=1)
    for generate in (lm.generate, lm.start):
        with pytest.raises(InputError, match=wanted):
            generate("a", max_tokens=3)


def test_help_lists_what_generate_takes_and_repr_says_what_it_is():
    lm = lm_of(Bytes(), cell="lstm", layers=1)
    for method in (lm.generate, lm.generate_pieces, lm.generate_batch, lm.start, lm.start_batch):
        names = list(inspect.signature(method).parameters)
        assert {"max_new_tokens", "temperature", "top_k", "top_p", "num_beams", "stop"} <= set(names)
        assert "settings" not in names
    assert repr(lm).startswith("LanguageModel(cell='lstm', size=8, layers=1") and "257 symbols" in repr(lm)


@pytest.mark.parametrize(
    ("given", "block", "computes"),
    [
        ({"cell": "gru"}, "plain", "gru(x)"),
        ({"cell": "lru"}, "residual", "x + GLU(lru(norm(x)))"),
        ({"cell": "mamba"}, "residual", "x + mamba(norm(x))"),
        ({"cell": "mamba", "block": "plain"}, "plain", "mamba(x)"),
        ({"cell": "s5", "residual": True, "norm": "rms"}, "plain", "x + s5(norm(x))"),
        ({"cell": "gru", "block": "residual"}, "residual", "x + GLU(gru(norm(x)))"),
    ],
)
def test_the_block_around_a_cell(given, block, computes):
    config = LMModelConfig(size=8, layers=2, **given)
    assert network.block_of(config) == block and network.describe(config) == computes
    core = build(config, 11).core
    first = core.cores[0]
    assert isinstance(first, Residual) == computes.startswith("x + ")
    assert isinstance(core.cores[-1], Norm) == (block == "residual")
    assert any(isinstance(part, GLU) for part in core.modules()) == ("GLU" in computes)


def test_a_block_by_hand():
    torch.manual_seed(0)
    core = blocks("lru", 3, 4, layers=1)
    dense, block, last = core.cores
    norm, lru, glu = block.core.cores
    x = torch.randn(2, 5, 3)
    z, _ = dense(x)
    v = torch.nn.functional.silu(lru(norm(z)[0])[0])
    value, gate = torch.nn.functional.linear(v, glu.U, glu.b).chunk(2, -1)
    torch.testing.assert_close(core(x)[0], last(z + value * torch.sigmoid(gate))[0])


def test_unknown_blocks_and_cells_that_are_no_network_are_refused():
    with pytest.raises(InputError, match=r"model\.block is 'papers'; it must be one of 'auto', 'plain', 'residual'"):
        build(LMModelConfig(block="papers"), 11)
    with pytest.raises(InputError, match=r"model.cell is hmm.*--task hmm"):
        build(LMModelConfig(cell="hmm"), 11)


native_only = pytest.mark.skipif(kernels.active() != "native", reason="only native streams store weights in fewer bits")


@native_only
@pytest.mark.parametrize("cutoffs", [[], [4, 8]])
def test_narrow_weights_read_a_prompt_as_they_write_it(cutoffs):
    """With a read-out that is not native, too."""
    lm, prompts = lm_of(size=24, cutoffs=cutoffs), ["to be, or", "that"]
    generation = lm.start_batch(prompts, seeds=[1, 2], max_new_tokens=8, weights="int8")
    texts = ["".join(pieces) for pieces in zip(*generation, strict=True)]
    again = lm.read([p + t for p, t in zip(prompts, texts, strict=True)], lm.init_state([1, 2]), "int8")
    pairs = zip(states.leaves(generation.state.core), states.leaves(again.core), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def rounded(lm):
    """The same model with the matrices of products in bfloat16, as Torch rounds them."""
    lm = LanguageModel(copy.deepcopy(lm.model), lm.vocabulary, lm.config)
    with torch.no_grad():
        for name, parameter in lm.model.named_parameters():
            if name.endswith((".U", ".W", "linear.weight")):
                parameter.copy_(parameter.bfloat16().float())
    return lm


@native_only
@pytest.mark.parametrize("tokens", [0, 20])
def test_narrow_weights_read_and_write_as_the_rounded_ones(tokens):
    """By the state after a prompt, and after what was written behind it."""
    lm = lm_of(size=40)

    def after(model, weights):
        writing = model.start(TEXT, seed=3, max_new_tokens=tokens, weights=weights)
        text = "".join(piece for (piece,) in writing)
        return text, states.leaves(writing.state.core)

    (text, found), (same, wanted), (_, plain) = after(lm, "bfloat16"), after(rounded(lm), None), after(lm, None)
    assert text == same and len(text) == tokens
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert not any(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(found, plain, strict=True))


@native_only
def test_narrow_weights_begin_anew_where_a_line_does():
    """In lanes and chunks that cut the lines, each is scored as if alone."""
    lm = lm_of(size=40)
    ids = [lm.vocabulary.encode(line) for line in ("to be", "or", "not to be", "that is the question")]
    lines = Encoded(np.concatenate([[0], *([*i, 0] for i in ids)]), 40, 0)
    found = lm.evaluate(lines, 2, 4, weights="bfloat16").nats
    assert found == pytest.approx(rounded(lm).evaluate(lines, 2, 4).nats, rel=1e-5)
    assert found != pytest.approx(lm.evaluate(lines, 2, 4).nats, rel=1e-5)
