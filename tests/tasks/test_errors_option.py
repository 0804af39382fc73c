"""The message about invalid UTF-8 says `--data.errors replace`: every verb that reads files takes it, as `--errors`."""

from argparse import ArgumentParser

import pytest

from elman import tasks
from elman.cli.model_verb import add_arguments

VERBS = [
    (name, verb)
    for name in ("classify", "tag", "translate", "tree", "hmm", "lm", "markov")
    for verb in tasks.find(name).requests
    if verb in ("evaluate", "predict", "inspect")
]


@pytest.mark.parametrize(("task", "verb"), VERBS)
def test_what_the_message_says_can_be_done(task, verb):
    for option in ("--errors", "--data.errors"):
        parser = ArgumentParser()
        add_arguments(parser, tasks.find(task).requests[verb][0])
        assert parser.parse_args(["file", option, "replace"]).errors == "replace"
