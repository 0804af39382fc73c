"""The network that a config describes has every part that the config names."""

from dataclasses import replace

import pytest
import torch

from elman.cells import CELLS
from elman.errors import InputError
from elman.tasks.forecast.config import ForecastModelConfig
from elman.tasks.network import NetworkConfig, core, resolve_defaults
from elman.tasks.predictor import copy_weights


def scanned(config, x, **more):
    torch.manual_seed(0)
    return core(config, x.shape[-1], **more).eval().scan(x)[0]


def test_a_size_that_is_not_one_is_refused_by_the_name_of_its_setting():
    with pytest.raises(InputError, match=r"^model\.size is 0; it must be a whole number of at least 1"):
        resolve_defaults(NetworkConfig(size=0))


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("residual", [False, True])
def test_a_norm_stands_before_each_layer(norm, residual):
    """What a layer reads is the same however large its input is, up to the small number in the norm."""
    x = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(1))
    found, same, plain = (
        scanned(NetworkConfig(cell="gru", size=4, norm=kind, residual=residual), size * x)
        - (size * x if residual else 0.0)
        for kind, size in ((norm, 30.0), (norm, 60.0), (None, 60.0))
    )
    torch.testing.assert_close(found, same, rtol=0, atol=1e-3)
    assert (plain - same).abs().max() > 0.1


def test_layers_and_options_reach_the_cells():
    x = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(1))
    cells = [
        part for part in core(NetworkConfig(cell="gru", size=4, layers=3), 4).modules() if "GRU" in str(type(part))
    ]
    assert len(cells) == 3
    plain, other = (scanned(NetworkConfig(cell="elman", size=4, options=o), x) for o in ({}, {"phi": "relu"}))
    assert plain.min() < 0 <= other.min()


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", [name for name, kind in CELLS.items() if kind.state_weights])
def test_weights_that_multiply_the_state_are_dropped_in_training_alone(name, bidirectional):
    """The first step of a row reads no state: nothing is dropped there. With p = 0.999 hardly a weight is left."""
    x = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(1))
    configs = [NetworkConfig(cell=name, size=64, weight_dropout=p) for p in (0.0, 0.999)]
    whole, dropped = (scanned(config, x, bidirectional=bidirectional) for config in configs)
    assert torch.equal(whole, dropped)
    torch.manual_seed(0)
    network = core(configs[1], 4, bidirectional=bidirectional)
    first, second = network.scan(x)[0], network.scan(x)[0]
    torch.testing.assert_close(first[:, 0, :64], whole[:, 0, :64])
    assert not torch.allclose(first[:, 1:, :64], whole[:, 1:, :64], atol=1e-3)
    if bidirectional:
        torch.testing.assert_close(first[:, -1, 64:], whole[:, -1, 64:])
        assert not torch.allclose(first[:, :-1, 64:], whole[:, :-1, 64:], atol=1e-3)
    assert not torch.equal(first, second)  # each scan draws its own


def test_weight_dropout_is_refused_where_nothing_would_be_dropped():
    with pytest.raises(InputError, match=r"^model\.weight_dropout is 0\.5; .* these of mingru are residual blocks"):
        core(NetworkConfig(cell="mingru", size=4, weight_dropout=0.5), 3)
    with pytest.raises(InputError, match=r"and IndRNN has none\. Cells that have: elman, rate, lstm, gru, mgu$"):
        core(NetworkConfig(cell="indrnn", size=4, weight_dropout=0.5), 3)
    with pytest.raises(InputError, match="weight_dropout is 1"):
        core(NetworkConfig(cell="gru", size=4, weight_dropout=1.0), 3)


@pytest.mark.parametrize(("kind", "name"), [(NetworkConfig, "residual"), (ForecastModelConfig, "residual_layers")])
def test_what_a_layer_reads_is_added_where_a_config_says_so(kind, name):
    """A forecaster has another setting of that name, so its own is called residual_layers."""
    x = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(1))
    added, alone = (scanned(kind(cell="gru", size=4, **{name: flag}), x) for flag in (True, False))
    assert torch.equal(added, x + alone)


@pytest.mark.parametrize("block", ["plain", "residual"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_every_layer_and_direction_has_a_learned_start(block, bidirectional):
    config = NetworkConfig(cell="gru", size=4, layers=2, block=block, learn_initial_state=True)
    network = core(config, 4, bidirectional=bidirectional)
    starts = {name: start for name, start in network.named_parameters() if name.endswith("initial_state")}
    assert [start.numel() for start in starts.values()] == ([4] * 4 if bidirectional else [8])
    x = torch.randn(2, 5, 4)
    plain = core(replace(config, learn_initial_state=False), 4, bidirectional=bidirectional)
    copy_weights(plain, network)
    assert torch.equal(network.scan(x)[0], plain.scan(x)[0])  # at first it is zero
    network.scan(x)[0].square().sum().backward()
    assert all(start.grad.abs().min() > 0 for start in starts.values())


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_start_of_nothing_cannot_be_learned(bidirectional):
    config = NetworkConfig(cell="window", size=4, options={"k": 1}, learn_initial_state=True)
    with pytest.raises(InputError, match="whose start could be learned"):
        core(config, 4, bidirectional=bidirectional)
