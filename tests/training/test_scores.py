from elman.training.scores import Scores


def test_smaller_is_better_unless_said():
    loss = Scores({"loss": 1.0, "other": 3.0}, "loss", secondary=("other",))
    assert loss.better_than(None) and loss.better_than(1.5) and not loss.better_than(1.0) and not loss.better_than(0.5)
    accuracy = Scores({"accuracy": 0.8}, "accuracy", larger_is_better=True)
    assert accuracy.better_than(0.7) and not accuracy.better_than(0.8) and not accuracy.better_than(0.9)


def test_what_is_recorded_and_what_is_json():
    scores = Scores(
        {"f1": 0.5, "accuracy": 0.8, "words": 9.0}, "f1", secondary=("accuracy",), details={"scheme": "IOB2"}
    )
    assert scores.metrics("valid") == {"valid": 0.5, "accuracy": 0.8}
    assert scores.to_json() == {"f1": 0.5, "accuracy": 0.8, "words": 9.0, "scheme": "IOB2"}
