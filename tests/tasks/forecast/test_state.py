"""A state is a value, and continues with the model that made it."""

import pytest
import torch

import elman
from elman import state as states
from elman.errors import FileError, InputError

ROWS = {
    "unique_id": ["a"] * 60 + ["b"] * 60,
    "ds": [*range(60), *range(60)],
    "y": [10 + t % 5 + (t * 7919 % 13) / 10 for t in range(120)],
}
NEXT = {"unique_id": ["a", "b"], "ds": [60, 60], "y": [11.0, 12.0]}


def forecaster(seed):
    config = elman.ForecastConfig(
        data={"horizon": 3, "seasonality": 5, "samples": 5, "window": 16, "batch_size": 2},
        model={"size": 4, "dropout": 0.5, "layers": 2},
        training={"steps": 2, "evaluate_every": 2},
        seed=seed,
    )
    return elman.train(config, ROWS, progress=False)[0]


@pytest.fixture(scope="module")
def two():
    return forecaster(0), forecaster(1)


def test_another_model_of_the_same_shape_refuses_a_state(two, tmp_path):
    own, other = two
    mixed = states.concat([states.take(own.state, [0]), states.take(other.state, [1])])
    updated = other.update(other.state, NEXT)
    for state in (other.state, updated, other.read_from_start(ROWS), states.take(updated, [1]), mixed):
        for use in (
            lambda state: own.forecast(state),
            lambda state: own.update(state, NEXT),
            lambda state: own.save_state(tmp_path / "state", state),
        ):
            with pytest.raises(
                InputError, match=rf"the model {other.fingerprint[:12]}, and this is {own.fingerprint[:12]}"
            ):
                use(state)
    assert not (tmp_path / "state").exists()
    with pytest.raises(InputError, match="a str was given for a state"):
        own.update("state", NEXT)


def test_its_own_state_is_taken_however_it_was_cut(two, tmp_path):
    own, other = two
    state = own.update(own.state, NEXT)
    for one in (state, states.take(state, [1]), states.concat([state, state])):
        own.forecast(one)
    own.save_state(tmp_path / "state", state)
    loaded = own.load_state(tmp_path / "state")
    assert all(torch.equal(a, b) for a, b in zip(states.leaves(loaded), states.leaves(state), strict=True))
    with pytest.raises(FileError, match="a state of another model of the same shape"):
        other.load_state(tmp_path / "state")
    own.save(tmp_path / "model")
    again = elman.load(tmp_path / "model")
    assert (again.forecast(state).mean == own.forecast(state).mean).all()


def test_writing_to_a_state_does_not_change_the_model(two):
    own, _ = two
    before = own.forecast(own.state).mean
    state = own.state
    for leaf in states.leaves(state):
        leaf.zero_()
    assert (own.forecast(own.state).mean == before).all()
