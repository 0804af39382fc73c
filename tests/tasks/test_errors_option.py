"""The message about invalid UTF-8 says `--data.errors replace`: every verb that reads files takes it, as `--errors`."""

from argparse import ArgumentParser

import pytest

from elman import tasks
from elman.tasks.task import Verb

VERBS = [
    (name, verb)
    for name in ("classify", "tag", "translate", "tree", "hmm", "lm", "markov")
    for verb in tasks.find(name).verbs
    if verb in ("evaluate", "predict", "inspect")
]


@pytest.mark.parametrize(("task", "name"), VERBS)
def test_what_the_message_says_can_be_done(task, name):
    verb: Verb = tasks.find(task).verbs[name]
    for option in ("--errors", "--data.errors"):
        parser = ArgumentParser()
        verb.arguments(parser)
        assert parser.parse_args(["file", option, "replace"]).errors == "replace"
