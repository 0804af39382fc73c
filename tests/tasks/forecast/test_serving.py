import pytest
from tables import RUNS

from elman.tasks import Predictor, load
from elman.tasks.forecast.serving import ServedSeries


@pytest.fixture
def digests(monkeypatch):
    """The fingerprints of models that are computed, each a pass over all weights."""
    made, fingerprint = [], Predictor.fingerprint.fget
    monkeypatch.setattr(Predictor, "fingerprint", property(lambda self: made.append(fingerprint(self)) or made[-1]))
    return made


def test_the_first_rows_of_a_session_do_not_take_the_digest_of_the_weights(digests):
    served = ServedSeries(load(RUNS / "forecast"))
    digests.clear()
    work = served.reading([{"ds": f"2024-01-0{day}", "y": day} for day in (1, 2)])
    work.begin(served.start(0))
    served.advance([work])
    assert len(work.answer()["outputs"]) == 2 and digests == []


def test_a_state_is_loaded_with_one_digest(digests, tmp_path):
    model = load(RUNS / "forecast")
    model.save_state(tmp_path / "state", model.state)
    digests.clear()
    model.load_state(tmp_path / "state")
    assert len(digests) == 1
