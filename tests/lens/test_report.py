"""The whole report: verdicts that are known, completeness, units that follow, and what is bad or cannot be had."""

import json
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import elman
from elman import lens
from elman.errors import InputError
from elman.lens.gates import health
from elman.lens.layers import trajectory
from elman.nn.embed import Embedding
from elman.nn.readout import Softmax


@pytest.mark.parametrize("shape", [(1, 1, 2), (2, 2, 2)])
def test_one_step_and_one_unit(shape):
    report = lens.inspect(elman.cell("gru", 2, 1), torch.randn(shape))
    assert json.dumps(report.to_json(), allow_nan=False)


def test_not_a_number():
    core = elman.cell("gru", 2, 3)
    with torch.no_grad():
        core.b[0] = math.nan
    report = lens.inspect(core, torch.randn(2, 9, 2))
    assert report.health[0].not_finite == 0 and "not finite from step 0" in " ".join(report.verdict)
    assert json.dumps(report.to_json(), allow_nan=False) and report.missing
    assert report.verdict[0] == "The gradient in layer 0 gru is not finite." and "nan times" not in str(report.verdict)


def test_what_reads_the_future_says_what_cannot_be_had():
    model = elman.SequenceModel(Embedding(5, 3), elman.stack("gru", 3, 4, bidirectional=True), Softmax(8, 5))
    x = torch.randint(0, 5, (3, 9))
    report = lens.inspect(model, x, x)
    assert report.context is None and "reads the future" in report.missing["context"]
    assert report.influence[0].values.shape == (9, 9) and not report.causal


def test_a_core_without_a_state():
    report = lens.inspect(elman.Dense(2, 3), torch.randn(2, 9, 2))
    assert report.kind == "stateless" and "no state" in report.verdict[0]


@pytest.mark.parametrize(
    ("model", "x", "match"),
    [
        (torch.nn.Linear(2, 3), torch.randn(1, 5, 2), "takes a Core or a SequenceModel"),
        (elman.cell("gru", 2, 3), torch.randn(0, 5, 2), "at least one input"),
        (elman.cell("gru", 2, 3), torch.randn(1, 0, 2), "at least one input"),
        (
            elman.SequenceModel(Embedding(5, 3), elman.cell("gru", 3, 4), Softmax(4, 5)),
            torch.zeros(1, 3).long(),
            "pass y",
        ),
    ],
)
def test_bad_input(model, x, match):
    with pytest.raises(InputError, match=match):
        lens.inspect(model, x)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_what_is_not_finite_in_the_padding_is_no_news(name):
    torch.manual_seed(0)
    core, x = elman.cell(name, 2, 3), torch.randn(2, 9, 2)
    for lengths, wanted in (([5, 9], None), ([9, 9], 5)):
        x[0, 5:] = torch.nan
        [layer] = lens.layers_of(core, lens.Sample(x, lengths=torch.tensor(lengths)))
        assert health(layer, trajectory(layer)).not_finite == wanted


def test_a_model_that_others_use_is_inspected_as_alone():
    """Hooks and flags are set on a copy: inspecting in two threads beside scans gives what each gives alone."""
    torch.manual_seed(0)
    model, x = elman.stack("gru", 3, 16, layers=2), torch.randn(8, 60, 3)
    alone, scanned = lens.inspect(model, x).to_json(), model(x)[0]
    with ThreadPoolExecutor(3) as pool:
        reports = [pool.submit(lens.inspect, model, x) for _ in range(6)]
        scans = [pool.submit(model, x) for _ in range(20)]
        assert all(report.result().to_json() == alone for report in reports)
        assert all(scan.result()[0].requires_grad and torch.equal(scan.result()[0], scanned) for scan in scans)


def test_a_learned_start_is_seen_as_a_first_state():
    """Each row is read as far as its first episode goes, from the state that is learned."""
    torch.manual_seed(0)
    bare = elman.stack("gru", 3, 4, layers=2)
    core = elman.LearnedStart(bare)
    torch.nn.init.normal_(core.initial_state)
    x, reset = torch.randn(3, 12, 3), torch.zeros(3, 12, dtype=torch.bool)
    reset[0, 7] = reset[2, 4] = True
    start = elman.state.detach(core.init_state(3))
    found = lens.inspect(core, lens.Sample(x, reset=reset))
    wanted = lens.inspect(bare, lens.Sample(x, state=start, lengths=torch.tensor([7, 12, 4])))
    assert found.loss == wanted.loss and "later episodes" in found.missing
    assert [one.to_json() for one in found.reach] == [one.to_json() for one in wanted.reach]
    for mine, theirs in zip(found.traces, wanted.traces, strict=True):
        assert torch.equal(mine.values, theirs.values)
    assert "later episodes" not in lens.inspect(core, lens.Sample(x)).missing
