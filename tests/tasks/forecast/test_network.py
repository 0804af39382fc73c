"""The network of a forecaster streams natively, to the bits of its scan, whatever is asked of it."""

import pytest
import torch

from elman import kernels, laws, random
from elman import state as states
from elman.decoding.paths import NativePaths
from elman.errors import InputError
from elman.kernels.builder import Unstreamable
from elman.stream import Stream
from elman.tasks.forecast.config import ForecastModelConfig, resolve_defaults
from elman.tasks.forecast.network import Widths, build

CONFIGS = {
    "as it comes": ({}, 1),
    "seasonal": ({"residual": "seasonal", "lags": [1, 2, 4, 5]}, 1),
    "last of two": ({"residual": "last", "scale": "mean", "lags": [3, 1]}, 2),
    "seasonal of two": ({"residual": "seasonal", "readout": "gaussian", "decay": 0.9}, 2),
    "quantiles": ({"readout": "quantiles", "residual": "last"}, 1),
    "counts": ({"readout": "negative_binomial"}, 1),
    "bits": ({"readout": "bernoulli", "lags": [1, 3]}, 3),
    "no feedback": ({"feedback": "none"}, 1),
    "series have vectors": ({"embedding_size": 3, "layers": 2}, 1),
    "blocks": ({"cell": "lru", "layers": 2}, 1),
    "residual layers": ({"cell": "gru", "layers": 2, "residual_layers": True, "norm": "rms"}, 1),
    "linear": ({"kind": "linear", "order": 3}, 1),
}


def network(name, **more):
    changes, C = CONFIGS[name]
    torch.manual_seed(0)
    config = resolve_defaults(ForecastModelConfig(**{"size": 7, **changes, **more}))
    others = 2
    return build(config, Widths(C, others, 5), 4).eval(), C, config


def rows(C, numbered, B=5, T=17):
    """[value, seen, others], and the number of the series where it has one."""
    g = torch.Generator().manual_seed(1)
    value, seen = torch.randn(B, T, C, generator=g) * 10, (torch.rand(B, T, 1, generator=g) < 0.8).float()
    others = torch.randn(B, T, 2, generator=g)
    number = torch.arange(B)[:, None, None].expand(B, T, 1).float()
    return torch.cat([value, seen, others, *([number] if numbered else [])], -1)


@pytest.mark.skipif(kernels.active() != "native", reason="bits are a promise of the native kernels")
@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_a_step_of_the_stream_is_native_and_has_the_bits_of_the_scan(name):
    model, C, config = network(name)
    x = rows(C, config.embedding_size > 0)
    stream = Stream(model, len(x))
    assert stream.native
    y, last = model.core.scan(model.embed(x))
    whole = vars(model.readout(y))
    for t in range(x.shape[1]):
        said = vars(stream.step(x[:, t]))
        for field, value in said.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, whole[field][:, t]), (t, field)
    assert all(map(torch.equal, states.leaves(stream.state), states.leaves(last)))


@pytest.mark.skipif(kernels.active() != "native", reason="native paths")
@pytest.mark.parametrize("name", ["as it comes", "seasonal", "last of two", "series have vectors", "blocks"])
@torch.no_grad()
def test_paths_have_the_bits_of_steps_and_draws(name):
    """61 paths of each of five series: several tiles, of which one ends in the middle of a series."""
    model, C, config = network(name)
    x = rows(C, config.embedding_size > 0)
    _, state = model.core.scan(model.embed(x[:, :8]))
    ahead, S = x[:, 8:], 61
    draws = torch.stack([torch.arange(5 * S) * 2**33 + 7, torch.arange(5 * S) % 3], 1)
    paths = NativePaths(model)(state, model.embed(ahead), draws)
    assert paths.shape == (5 * S, 9, C) and paths.dtype == torch.float64
    stream, drawn = Stream(model, 5 * S), None
    stream.state = states.repeat(state, S)
    for t in range(9):
        given = ahead[:, t].repeat_interleave(S, 0)
        if drawn is not None:
            given[:, :C] = drawn
        drawn = stream.step(given).sample(random.after(draws, t))
        assert torch.equal(paths[:, t], drawn.double()), t
    one = states.take(state, torch.tensor([3]))
    alone = NativePaths(model)(one, model.embed(ahead)[3:4], draws[3 * S + 5 : 3 * S + 7])
    assert torch.equal(alone, paths[3 * S + 5 : 3 * S + 7])


@pytest.mark.skipif(kernels.active() != "native", reason="native paths")
def test_paths_are_of_what_is_drawn_natively_and_a_path_is_no_step():
    for name in ("seasonal of two", "quantiles", "counts", "bits"):
        with pytest.raises(Unstreamable):
            NativePaths(network(name)[0])
    follow, x = NativePaths(network("as it comes")[0]), torch.zeros(2, 3, 4)
    state = network("as it comes")[0].core.init_state(2)
    with pytest.raises(ValueError, match="the arrays of paths"):
        follow(state, x, torch.zeros(3, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="draws, which a step does not"):
        follow._program.stream(1).step(torch.zeros(1, 4).numpy(), None, follow._program.outputs(), 1)


@pytest.mark.parametrize("name", ["seasonal of two", "last of two", "blocks"])
def test_the_laws(name):
    report = laws.check(network(name)[0].core)
    assert report and (report.exact or kernels.active() != "native"), report


def test_the_cells_are_built_as_those_of_other_tasks():
    blocks, plain = network("blocks"), network("blocks", block="plain")
    assert blocks[2].block == "residual" and plain[2].block == "plain"
    names = [{name for name, _ in model.named_parameters()} for model in (blocks[0], plain[0])]
    assert names[0] > set() and names[0] != names[1]
    assert resolve_defaults(ForecastModelConfig(cell="gru")).block == "plain"
    assert ForecastModelConfig(residual="seasonal", residual_layers=True).adds_input is True
    assert ForecastModelConfig(residual="seasonal").adds_input is False
    with pytest.raises(InputError, match=r"model\.block is 'round'"):
        resolve_defaults(ForecastModelConfig(block="round"))
