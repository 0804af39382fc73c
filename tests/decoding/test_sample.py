import numpy as np
import pytest
import torch

from elman import kernels, random
from elman import state as states
from elman.data.vocabulary import BOUNDARY
from elman.decoding.sample import AHEAD, Carried, Sampler, Sampling, sample
from elman.errors import InputError
from elman.nn.distributions import Categorical
from elman.progress import cancellable
from elman.stream import ModelStream
from elman.tasks.text.lm import LMModelConfig, build

P = np.array([0.5, 0.2, 0.15, 0.1, 0.05])
NONE = np.zeros(5, dtype=bool)


def frequencies(settings, p=P, seen=NONE, n=4000):
    """With u on a fine grid, the frequencies are the probabilities to 1 / n."""
    u = (np.arange(n)[:, None] + 0.5) / n
    chosen = settings.choose(np.tile(np.log(p), (n, 1)), np.tile(seen, (n, 1)), u)
    return np.bincount(chosen, minlength=len(p)) / n


def normal(p):
    return p / p.sum()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (Sampling(), P),
        (Sampling(temperature=0.5), normal(P**2)),
        (Sampling(temperature=2.0), normal(P**0.5)),
        (Sampling(temperature=0), np.eye(5)[0]),
        (Sampling(top_k=2), normal(P * [1, 1, 0, 0, 0])),
        (Sampling(top_k=99), P),
        (Sampling(top_p=0.6), normal(P * [1, 1, 0, 0, 0])),
        (Sampling(top_p=0.01), np.eye(5)[0]),
        (Sampling(top_k=3, top_p=0.999), normal(P * [1, 1, 1, 0, 0])),
    ],
)
def test_the_probabilities_are_what_the_settings_say(settings, expected):
    np.testing.assert_allclose(frequencies(settings), expected, atol=1e-3)
    shuffled = [3, 0, 4, 1, 2]
    np.testing.assert_allclose(frequencies(settings, P[shuffled]), expected[shuffled], atol=1e-3)


def test_the_repetition_penalty_is_for_what_was_seen():
    seen = np.array([True, False, False, False, False])
    expected = normal(np.where(seen, P**1.5, P))
    np.testing.assert_allclose(frequencies(Sampling(repetition_penalty=1.5), seen=seen), expected, atol=1e-3)


def test_what_is_banned_has_no_probability_when_the_penalty_counts():
    """The log-probabilities that it multiplies are those of what may be chosen."""
    seen, allowed = np.array([False, True, False, True, False]), P * [0, 1, 1, 1, 1] / 0.5
    expected = normal(np.where(seen, allowed**1.5, allowed))
    found = frequencies(Sampling(repetition_penalty=1.5, banned=(0,)), seen=seen)
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_a_tiny_temperature_and_a_large_penalty_are_no_division_by_zero():
    settings = Sampling(temperature=1e-3, repetition_penalty=3.0)
    assert settings.choose(np.log(P)[None] + 5, np.ones((1, 5), dtype=bool), np.array([[0.5]])) == [0]


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"repetition_penalty": 0.0},
    ],
)
def test_bad_settings(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        Sampling(**bad)


def rows_of_logits(B=37, V=23):
    g = torch.Generator().manual_seed(0)
    logits = (torch.randn(B, V, generator=g) * 3).numpy()
    return logits, (torch.rand(B, V, generator=g) < 0.3).numpy()


SETTINGS = [
    Sampling(),
    Sampling(temperature=0),
    Sampling(temperature=0.7, top_k=5),
    Sampling(top_p=0.8),
    Sampling(temperature=1.3, top_k=9, top_p=0.9, repetition_penalty=1.3),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("settings", SETTINGS)
def test_a_row_is_chosen_for_the_same_alone_and_in_any_batch(settings, dtype):
    logits, seen = rows_of_logits()
    logits = logits.astype(dtype)
    for seed in range(20):
        u = random.uniform(torch.tensor([[seed, b] for b in range(len(logits))]), 1).numpy()
        whole = settings.choose(logits, seen, u)
        for some in ([0], [36], [5, 5], list(range(30, 3, -1))):
            assert settings.choose(logits[some], seen[some], u[some]).tolist() == whole[some].tolist()


def test_without_settings_it_is_the_distributions_sample_and_mode():
    logits, seen = rows_of_logits(B=500)
    drawn = torch.tensor([[b, 2 * b] for b in range(500)])
    predicted = Categorical(torch.from_numpy(logits))
    u = random.uniform(drawn, 1).numpy()
    assert Sampling().choose(logits, seen, u).tolist() == predicted.sample(drawn).tolist()
    assert Sampling(temperature=0).choose(logits, seen, u).tolist() == predicted.mode.tolist()


class WithState:
    def init_state(self, batch_size):
        return torch.zeros(batch_size, 1)


class Counter(WithState):
    """The symbol after v is v + 1, nearly always; the state counts the steps."""

    def step(self, x, state):
        logits = torch.nn.functional.one_hot((x + 1) % 5, 5).float() * 2
        return Categorical(logits), state + 1


def test_the_state_is_all_that_a_sampler_needs():
    start = Carried(
        torch.zeros(2, 1), torch.tensor([0, 3]), torch.zeros(2, 5, dtype=torch.bool), torch.tensor([[1, 0], [2, 0]])
    )
    sampler = Sampler(Counter(), start, Sampling(repetition_penalty=1.2))
    whole = [sampler.next().tolist() for _ in range(8)]
    first = Sampler(Counter(), start, Sampling(repetition_penalty=1.2))
    some = [first.next().tolist() for _ in range(3)]
    second = Sampler(Counter(), first.state, Sampling(repetition_penalty=1.2))
    assert some + [second.next().tolist() for _ in range(5)] == whole
    assert second.state.core.tolist() == [[8.0], [8.0]]


def test_a_step_is_one_draw_of_each_row():
    """Past the numbers made ahead too: step k of a row with n draws behind it reads u[0] of draw n + k."""
    start = Carried(
        torch.zeros(3, 1),
        torch.tensor([0, 3, 1]),
        torch.zeros(3, 5, dtype=torch.bool),
        torch.tensor([[1, 0], [2, 7], [1, 0]]),
    )
    sampler = Sampler(Counter(), start, Sampling())
    token = start.token
    for k in range(AHEAD + 3):
        predicted, _ = Counter().step(token, torch.zeros(()))
        token = predicted.sample(random.after(start.draws, k))
        assert sampler.next().tolist() == token.tolist()
    assert sampler.state.draws.tolist() == [[1, AHEAD + 3], [2, AHEAD + 10], [1, AHEAD + 3]]


def test_a_row_samples_the_same_whoever_stands_beside_it():
    drawn = torch.tensor([[9, 0], [4, 70], [5, 0], [4, 70]])
    start = Carried(torch.zeros(4, 1), torch.tensor([0, 3, 1, 3]), torch.zeros(4, 5, dtype=torch.bool), drawn)
    settings = Sampling(temperature=2.0, top_p=0.95, repetition_penalty=1.1)
    together = Sampler(Counter(), start, settings)
    whole = np.stack([together.next() for _ in range(90)], 1)
    assert whole[1].tolist() == whole[3].tolist() != whole[2].tolist()
    for row in range(4):
        alone = Sampler(Counter(), Carried(*states.take(start, [row])), settings)
        assert [int(alone.next()[0]) for _ in range(90)] == whole[row].tolist()


class ScansOfOne:
    def __init__(self, model):
        self.model, self.init_state = model, model.init_state

    def step(self, x, state):
        predicted, state = self.model.scan(x[:, None], state)
        return Categorical(predicted.logits[:, 0]), state


@pytest.mark.skipif("native" not in kernels.available(), reason="the native module is not built")
@pytest.mark.parametrize("name", ["gru", "lstm", "mingru"])
def test_a_streamed_model_samples_what_its_scan_samples(name):
    """The stream is native, and the bits are those of the scan: the same symbols, the same last state."""
    torch.manual_seed(0)
    model = build(LMModelConfig(cell=name, size=16, layers=2), 9).eval()
    seen, draws = torch.zeros(3, 9, dtype=torch.bool), torch.tensor([[1, 0], [2, 0], [3, 0]])
    start = Carried(model.scan(torch.tensor([[1, 2], [3, 4], [5, 6]]))[1], torch.tensor([2, 4, 6]), seen, draws)
    streamed, scanned = Sampler(model, start, Sampling()), Sampler(ScansOfOne(model), start, Sampling())
    assert streamed.stream.native and not scanned.stream.native
    assert [streamed.next().tolist() for _ in range(20)] == [scanned.next().tolist() for _ in range(20)]
    for a, b in zip(states.leaves(streamed.state), states.leaves(scanned.state), strict=True):
        assert torch.equal(a, b)


def test_a_repetition_penalty_counts_what_was_written_so_far_row_by_row():
    """By hand, at temperature 0: log P of what was written is multiplied by 3, whatever came before the first symbol.

    Row 0: 1 (log 0.5), then 2 (log 0.4 against 3 log 0.5), then 1 (3 log 0.5 against log 0.1 and 3 log 0.4), then 1.
    Row 1 begins with 2: then 1, and then 1 once more.
    """

    class Constant(WithState):
        def step(self, x, state):
            return Categorical(torch.tensor([0.1, 0.5, 0.4]).log().expand(*x.shape, -1)), state

    assert 3 * np.log(0.5) > np.log(0.1) > 3 * np.log(0.4) and np.log(0.4) > 3 * np.log(0.5)
    drawn = torch.tensor([[0, 0], [1, 0]])
    settings = Sampling(temperature=0, repetition_penalty=3.0)
    given = Constant(), torch.zeros(2, 1), torch.tensor([1, 1]), drawn, settings
    found = sample(*given, max_new_tokens=4, prefixes=[[], [2]])
    assert [h.tokens for h in found] == [[1, 2, 1, 1], [2, 1, 1, 1]]
    # What the model says of it is not penalised.
    assert found[0].log_prob == pytest.approx(np.log([0.5, 0.4, 0.5, 0.5]).sum(), rel=1e-6)
    plain = sample(*given[:-1], Sampling(temperature=0), max_new_tokens=4)
    assert [h.tokens for h in plain] == [[1, 1, 1, 1]] * 2


class Stepped:
    """A model that a sampler can only step: what `Sampler` does without looking ahead."""

    def __init__(self, model):
        self.stream, self.init_state = ModelStream(model, 1), model.init_state

    def step(self, x, state):
        stream = self.stream.share(len(x))
        stream.state = state
        return Categorical(torch.from_numpy(stream.logits(x.numpy()))), stream.state


@pytest.mark.skipif("native" not in kernels.available(), reason="the native module is not built")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("settings", [*SETTINGS, Sampling(banned=(0, 3))])
@pytest.mark.parametrize("size", [16, 300])
def test_looking_ahead_changes_nothing(size, settings, threads):
    """Rows that end at different steps, states that are asked for in between, and fewer rows than threads."""
    torch.manual_seed(0)
    model = build(LMModelConfig(cell="gru", size=size, layers=2), 9).eval()
    model.readout.linear.weight.data.mul_(10)  # not nearly uniform
    seen, draws = torch.zeros(3, 9, dtype=torch.bool), torch.tensor([[1, 0], [2, 5], [3, 0]])
    start = Carried(model.init_state(3), torch.tensor([2, 4, 6]), seen, draws)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        ahead, stepped = Sampler(model, start, settings, most=60), Sampler(Stepped(model), start, settings)
        assert ahead.stream.writes and not stepped.stream.writes
        for t in range(60):
            assert ahead.next().tolist() == stepped.next().tolist()
            for row in {7: [1], 40: [0]}.get(t, []):
                ahead.end(row)
                stepped.end(row)
            if t in (0, 3, 20, 31, 32, 59):
                for a, b in zip(states.leaves(ahead.state), states.leaves(stepped.state), strict=True):
                    assert torch.equal(a, b)
    finally:
        torch.set_num_threads(before)


def _three_rows():
    torch.manual_seed(0)
    model = build(LMModelConfig(cell="gru", size=16, layers=1), 9).eval()
    seen, draws = torch.zeros(3, 9, dtype=torch.bool), torch.tensor([[1, 0], [2, 5], [3, 0]])
    return model, Carried(model.init_state(3), torch.tensor([2, 4, 6]), seen, draws)


@pytest.mark.parametrize("when", [0, 1, 5])
def test_a_row_that_has_ended_stays_at_its_last_symbol(when):
    model, start = _three_rows()
    sampler, other = Sampler(model, start, Sampling()), Sampler(model, start, Sampling())
    for _ in range(when):
        last = sampler.next().copy()
        other.next()
    sampler.end(1)
    assert {int(sampler.next()[1]) for _ in range(40)} == {int(last[1]) if when else 4}
    wanted = [other.next() for _ in range(40)]
    assert sampler.state.token[[0, 2]].tolist() == wanted[-1][[0, 2]].tolist()


def test_a_row_that_drew_the_boundary_and_goes_on_comes_back_to_where_it_was():
    model, start = _three_rows()
    model.readout.linear.bias.data[BOUNDARY] += 3  # which is drawn again and again
    sampler, stepped = Sampler(model, start, Sampling()), Sampler(Stepped(model), start, Sampling())
    for _ in range(9):
        assert sampler.next().tolist() == stepped.next().tolist()
    sampler.end(1)
    stepped.end(1)
    for a, b in zip(states.leaves(sampler.state), states.leaves(stepped.state), strict=True):
        assert torch.equal(a, b)


@pytest.mark.skipif("native" not in kernels.available(), reason="the native module is not built")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("banned", [9, -1])
def test_a_banned_symbol_that_is_not_there_is_refused(banned, threads):
    torch.manual_seed(0)
    model = build(LMModelConfig(cell="gru", size=300, layers=1), 9).eval()
    seen, draws = torch.zeros(3, 9, dtype=torch.bool), torch.tensor([[1, 0], [2, 5], [3, 0]])
    start = Carried(model.init_state(3), torch.tensor([2, 4, 6]), seen, draws)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with pytest.raises(InputError, match=r"banned is .* 0 to 8"):
            Sampler(model, start, Sampling(banned=(banned,))).next()
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif("native" not in kernels.available(), reason="the native module is not built")
@pytest.mark.parametrize(
    "change",
    [
        {"token": torch.tensor([2, 4, 6], dtype=torch.int32)},
        {"seen": torch.zeros(3, 8, dtype=torch.bool)},
        {"seen": torch.zeros(3, 9, dtype=torch.uint8)},
        {"draws": torch.tensor([[1, 0], [2, 5], [3, 0]], dtype=torch.int32)},
    ],
    ids=["token", "vocabulary", "type of seen", "draws"],
)
def test_what_a_sampler_cannot_start_from_is_refused(change):
    model, start = _three_rows()
    with pytest.raises(InputError, match="needs"):
        Sampler(model, start._replace(**change), Sampling()).next()


def test_how_the_start_lies_in_memory_does_not_matter():
    model, start = _three_rows()
    start.seen[1, 3:] = True
    settings = Sampling(repetition_penalty=2.0)
    other = start._replace(seen=start.seen.T.contiguous().T, draws=start.draws.T.contiguous().T)
    one, two = Sampler(model, start, settings), Sampler(model, other, settings)
    assert [one.next().tolist() for _ in range(20)] == [two.next().tolist() for _ in range(20)]


@pytest.mark.parametrize("name", kernels.available())
def test_what_is_not_finite_or_unknown(name):
    with kernels.use(name):
        u, seen = np.array([[0.5]]), np.zeros((1, 3), dtype=bool)
        for settings in (Sampling(), Sampling(top_k=2), Sampling(top_p=0.5)):
            assert settings.choose(np.full((1, 3), np.nan), seen, u) == [0]
        assert Sampling(temperature=0).choose(np.array([[1.0, np.nan, 2.0]]), seen, u) == [1]
        for banned in (3, -1):
            with pytest.raises(InputError, match=r"banned is .* 0 to 2"):
                Sampling(banned=(banned,)).choose(np.zeros((1, 3)), seen, u)


@pytest.mark.skipif("native" not in kernels.available(), reason="the native module is not built")
@pytest.mark.parametrize(
    "settings", [*SETTINGS, Sampling(banned=(0, 3)), Sampling(repetition_penalty=2, banned=(0, 3))]
)
def test_the_reference_draws_the_same(settings):
    logits, seen = rows_of_logits(B=400)
    logits[:, 5] = logits[:, 7]  # of equal ones the first
    u = random.uniform(torch.tensor([[3, b] for b in range(400)]), 1).numpy()
    with kernels.use("reference"):
        wanted = settings.choose(logits, seen, u)
    assert settings.choose(logits, seen, u).tolist() == wanted.tolist()


def test_sampling_can_be_left():
    """It is asked before every step."""
    calls = []
    given = Counter(), torch.zeros(2, 1), torch.tensor([0, 1]), torch.tensor([[1, 0], [2, 0]]), Sampling(banned=(0,))
    with cancellable(lambda: calls.append(1)):
        sample(*given, max_new_tokens=3)
    assert len(calls) == 3

    def leave():
        raise TimeoutError

    with cancellable(leave), pytest.raises(TimeoutError):
        sample(*given, max_new_tokens=3)


@pytest.mark.parametrize("name", kernels.available())
def test_logits_may_lie_in_memory_as_they_like(name):
    logits, seen = rows_of_logits()
    u = random.uniform(torch.tensor([[3, b] for b in range(37)]), 1).numpy()
    with kernels.use(name):
        for settings in SETTINGS:
            wanted = settings.choose(logits, seen, u).tolist()
            assert settings.choose(np.asfortranarray(logits), np.asfortranarray(seen), u).tolist() == wanted
            wide = np.repeat(logits, 2, 1)[:, ::2], np.repeat(seen, 2, 1)[:, ::2], np.repeat(u, 2, 1)[:, ::2]
            assert settings.choose(*wide).tolist() == wanted
