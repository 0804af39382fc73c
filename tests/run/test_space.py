"""What a space may say, and what is refused before anything is trained."""

import pytest

from elman.errors import ElmanError, InputError
from elman.run.space import Choice, Range, open_space, read_space, with_values
from elman.tasks.tag.task import TagConfig
from elman.tasks.text.lm import LMConfig


def test_what_is_tried_of_each_setting():
    given = {
        "optim.lr": "log(1e-4, 1e-2)", "model.size": " uniform( 64 ,512 )", "model.cell": "choice(gru, 'lstm')",
        "model.dropout": [0, 0.5], "optim.betas": "choice([0.9, 0.99], [0.9, 0.999])", "seed": "uniform(0, 9)",
    }  # fmt: skip
    space = open_space(LMConfig(), given)
    assert space == {
        "optim.lr": Range(1e-4, 1e-2, True, False), "model.size": Range(64, 512, False, True),
        "model.cell": Choice(("gru", "lstm")), "model.dropout": Choice((0, 0.5)),
        "optim.betas": Choice(([0.9, 0.99], [0.9, 0.999])), "seed": Range(0, 9, False, True),
    }  # fmt: skip
    assert open_space(LMConfig(), {name: str(part) for name, part in space.items()}) == space


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("optim.lrr", "log(1, 2)", r"unknown setting to search 'optim\.lrr'.*Did you mean 'optim\.lr'"),
        ("optim.lr", "log(0, 1)", "the logarithm needs numbers above 0"),
        ("optim.lr", "log(-1, 1)", "the logarithm needs numbers above 0"),
        ("optim.lr", "log(1, 1)", "the first number must be below the second"),
        ("optim.lr", "uniform(2, 1)", "the first number must be below the second"),
        ("optim.lr", "log(1)", "log takes two numbers"),
        ("optim.lr", "log(a, b)", "log takes two numbers"),
        ("optim.lr", "loguniform(1, 2)", "what to try is written uniform"),
        ("optim.lr", "0.1", "what to try is written uniform"),
        ("optim.lr", 0.1, "what to try is written uniform"),
        ("optim.lr", "choice(1, [2)", "cannot be read"),
        ("optim.lr", "choice()", "a choice of 0 values"),
        ("optim.lr", [0.1], "a choice of 1 values"),
        ("optim.lr", [0.1, "x"], "has the choice 'x'; it takes numbers"),
        ("optim.lr", [0.1, True], "has the choice True; it takes numbers"),
        ("model.size", "uniform(0.5, 9)", "both ends must be whole numbers"),
        ("model.size", [64, 64.5], "has the choice 64.5; it takes whole numbers"),
        ("model.size", [64, 64], "has a choice twice"),
        ("model.cell", "uniform(1, 2)", "takes texts, not a range"),
        ("out", ["a", "b"], "out cannot be searched"),
        ("task", ["lm", "tag"], "task cannot be searched"),
    ],
)
def test_what_cannot_be_searched(name, text, message):
    with pytest.raises(ElmanError, match=message) as caught:
        open_space(LMConfig(), {name: text})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", [{}, None, "optim.lr", ["optim.lr"]])
def test_a_space_names_settings(given):
    with pytest.raises(InputError, match=r"the space is .*; it must name settings"):
        open_space(LMConfig(), given)


def test_a_file_may_be_nested(tmp_path):
    (tmp_path / "space.yaml").write_text("optim:\n  lr: log(1e-4, 1e-2)\nmodel.size: [64, 128]\n")
    assert read_space(tmp_path / "space.yaml") == {"optim.lr": "log(1e-4, 1e-2)", "model.size": [64, 128]}


def test_values_go_where_their_names_say():
    config = with_values(TagConfig(), {"optim.lr": 0.5, "model.crf": False, "seed": 3})
    assert (config.optim.lr, config.model.crf, config.seed) == (0.5, False, 3)
    assert config.data == TagConfig().data
