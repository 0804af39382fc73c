"""The command `elman`: one verb, one function, one file.

`elman VERB ...` imports elman.cli.VERB and calls its `run(arguments)`, which returns the exit code. Nothing here
imports Torch, and a verb imports it inside its function, so that help is instant.

Results go to standard output, messages and progress to standard error.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from elman import __version__
from elman.errors import ElmanError, UnknownNameError

VERBS = {
    "init": "print a complete config, every line with what it means",
    "train": "train a model on text or columns, or go on where a run was killed",
    "evaluate": "how well a model predicts a text (nats, bits, perplexity) or columns (log-likelihood)",
    "predict": "the hidden states of observations, as CSV",
    "generate": "text from a model, or observations",
    "doctor": "what is installed, which kernels run, and whether they compute the right thing",
    "laws": "check the laws for every cell and print the conformance table",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; the exit code is 0 when done, 1 when a check failed, 2 when it could not be done."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a character shows a question mark
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()  # here, where a closed pipe can still be caught
        return code
    except ElmanError as error:
        print(f"elman: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130  # 128 + SIGINT, as a shell reports it
    except (MemoryError, RecursionError) as error:
        what = "memory" if isinstance(error, MemoryError) else "depth"
        print(
            f"elman: error: there is not enough {what} for this; make the model, the batch or the input smaller",
            file=sys.stderr,
        )
        return 2
    except BrokenPipeError:
        # The reader has gone, as in `elman laws | head`. Python flushes once more at exit: let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # 128 + SIGPIPE
    except OSError as error:  # a full disk behind standard output, a name that no file can have
        print(f"elman: error: {error}", file=sys.stderr)
        return 2


def _dispatch(arguments: Sequence[str] | None) -> int:
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.verb is None:
        parser.print_help(sys.stderr)
        return 2
    if given.verb not in VERBS:
        raise UnknownNameError("verb", given.verb, VERBS)
    code: int = import_module(f"elman.cli.{given.verb}").run(given.arguments)
    return code


def _parser() -> argparse.ArgumentParser:
    verbs = "\n".join(f"  {verb:<10} {purpose}" for verb, purpose in VERBS.items())
    parser = argparse.ArgumentParser(
        prog="elman",
        usage="elman VERB [arguments]",
        description="Recurrent sequence models whose state you own.",
        epilog=f"verbs:\n{verbs}\n\n`elman VERB --help` says what a verb takes.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"elman {__version__}")
    parser.add_argument("verb", nargs="?", metavar="VERB", help=argparse.SUPPRESS)
    # A verb parses its own arguments, so that help for one does not import the others.
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser
