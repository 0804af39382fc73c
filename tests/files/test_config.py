"""A config on the disk: what is written can be read, and what differs is named."""

from dataclasses import asdict, replace

import pytest

from elman.errors import FileError, InputError
from elman.files import config
from elman.tasks import TASKS
from elman.tasks.text.lm import LMConfig, LMModelConfig
from elman.training.loop import TrainingConfig


@pytest.mark.parametrize("name", TASKS)
def test_what_is_written_is_read(name, tmp_path):
    given = TASKS[name].Config()
    (tmp_path / "config.yaml").write_text(config.render(given))
    read = config.read(tmp_path / "config.yaml")
    assert config.identity(given, {})["settings"] == config.identity(TASKS[name].Config(), {})["settings"]
    assert read["task"] == name and set(read) == set(asdict(given))
    lines = (tmp_path / "config.yaml").read_text().splitlines()
    comments = [line for line in lines if line.lstrip().startswith("# ")]
    assert len(comments) * 2 == len(lines) and not any(line.rstrip().endswith("None") for line in comments)


@pytest.mark.parametrize(
    ("text", "message"), [("a: [1", "cannot read"), ("- 1\n", "not a config"), ("\t a: 1", "cannot read")]
)
def test_what_is_not_a_config_is_named(text, message, tmp_path):
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(FileError, match=r"bad\.yaml"):
        config.read(tmp_path / "bad.yaml")
    with pytest.raises(FileError, match=r"none\.yaml"):
        config.read(tmp_path / "none.yaml")


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, r"bad\.yaml has more than 10 aliases"),
        ("[" * 100_000, "or 20 levels"),
        ("model:\n\tsize: 3\n", r"bad\.yaml, line 2: found character"),
        ("model: {size: 3}\nmodel: {size: 4}\n", r"bad\.yaml, line 2: found duplicate key \"model\"$"),
    ],
    ids=["bomb", "deep", "tab", "twice"],
)
def test_what_would_hang_or_be_lost_is_refused(text, message, tmp_path):
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(FileError, match=message):
        config.read(tmp_path / "bad.yaml")


def test_a_few_aliases_and_a_mark_of_windows_are_read(tmp_path):
    (tmp_path / "run.yaml").write_bytes(b"\xef\xbb\xbfmodel: &m {size: 3}\nother: *m\n")
    assert config.read(tmp_path / "run.yaml") == {"model": {"size": 3}, "other": {"size": 3}}


def test_a_run_is_the_same_run_wherever_it_is(tmp_path):
    given = LMConfig(model=LMModelConfig(size=8, options={"phi": "relu"}))
    same = config.identity(given, {"data.train": "abc"})
    moved = replace(given, out="elsewhere", resume="auto", device="cpu", data=replace(given.data, train="other.txt"))
    assert config.resumed(same, moved, {"data.train": "abc"}, tmp_path) == {}
    for other, message in (
        (replace(given, model=LMModelConfig(size=9, options={"phi": "relu"})), r"model\.size = 8, not 9"),
        (replace(given, model=LMModelConfig(size=8)), r"model\.options\.phi = relu, not None"),
        (replace(given, seed=3), "seed = 0, not 3"),
    ):
        with pytest.raises(InputError, match=message):
            config.resumed(same, other, {"data.train": "abc"}, tmp_path)
    with pytest.raises(InputError, match=r"other data: the content of data\.train"):
        config.resumed(same, given, {"data.train": "xyz"}, tmp_path)


def test_how_long_a_run_goes_on_may_change_and_new_settings_had_their_defaults(tmp_path):
    given = LMConfig(training=TrainingConfig(steps=10))
    before = config.identity(given, {})
    longer = replace(given, training=replace(given.training, steps=20, patience=3))
    assert config.resumed(before, longer, {}, tmp_path) == {
        "training.patience": (0, 3), "training.steps": (10, 20),
    }  # fmt: skip
    del before["settings"]["init_from"]  # as a version before this setting wrote it
    assert config.resumed(before, given, {}, tmp_path) == {}
    with pytest.raises(InputError, match="started with init_from = , not runs/a"):
        config.resumed(before, replace(given, init_from="runs/a"), {}, tmp_path)


OTHERS = {bool: lambda value: not value, int: lambda value: value + 1, float: lambda value: value + 0.25}


@pytest.mark.parametrize("name", TASKS)
def test_every_setting_but_how_long_and_where_makes_another_run(name, tmp_path):
    given = TASKS[name].Config()
    before, allowed = config.identity(given, {}), set()
    for setting, value in before["settings"].items():
        other = OTHERS.get(type(value), lambda value: "other")(value)
        started = {**before, "settings": {**before["settings"], setting: other}}
        try:
            assert config.resumed(started, given, {}, tmp_path).keys() == {setting}
            allowed.add(setting)
        except InputError as error:
            assert f"was started with {setting} = " in str(error)
    trained = "training.steps" in before["settings"]
    assert allowed == ({"training.steps", "training.patience"} if trained else set())
    assert config.settings_of(given).keys() - before["settings"].keys() - {"device"} == {
        "out",
        "resume",
        "threads",
        "log",
    }
