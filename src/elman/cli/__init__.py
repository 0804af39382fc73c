"""The command `elman`: one verb, one function, one file.

`elman VERB ...` imports elman.cli.VERB and calls its `run(arguments)`, which returns the exit code. Nothing here
imports Torch, and a verb imports it inside its function, so that help is instant.

Results go to standard output, messages and progress to standard error.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import pairwise
from types import FrameType

from elman import __version__
from elman.cli import flags
from elman.errors import ElmanError, UnknownNameError

# How Torch says that there is not enough of it.
NO_MEMORY = re.compile(r"can't allocate memory|not enough memory|[Ss]torage size calculation overflowed")

VERBS = {
    "init": "print a complete config, every line commented",
    "train": "train a model on text, columns or series, or resume a run that was killed",
    "evaluate": "score a model on a text (nats, bits, perplexity), columns (log-likelihood) or series",
    "predict": "print what a model predicts for its inputs: tags, classes, hidden states, future values",
    "generate": "generate text or observations from a model",
    "inspect": "where the gradient dies, what the state holds, how long it remembers: a summary and a page",
    "serve": "serve models with their states over HTTP: sessions, completions, responses",
    "convert": "make a pretrained model, as others saved it, a model that every verb opens",
    "export": "write a model for other programs: ONNX, with its state as a value",
    "stream": "predict a stream row by row, and learn from each row as it comes",
    "search": "train a config with many values of its settings, and find the best",
    "compare": "compare runs: what differs in their configs, their scores, how long they took",
    "doctor": "check what is installed, which kernels run, and whether they compute the right thing",
    "laws": "check the laws for every cell and print the conformance table",
    "completion": "print a script with which bash, zsh or fish completes commands",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; the exit code is 0 when done, 1 when a check failed, 2 when it could not be done."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _open_streams()
    try:
        with interruptible():
            code = _dispatch(words)
            sys.stdout.flush()  # here, where a closed pipe can still be caught
        return code
    except ElmanError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return 130  # 128 + SIGINT, as a shell reports it
    except BrokenPipeError:
        _let_go()
        return 141  # 128 + SIGPIPE: the reader has gone, as in `elman laws | head`
    except OSError as error:  # standard output goes to a full disk, or no file can have such a name
        if error.filename is None:
            _let_go()
        return _fail(str(error))
    except RecursionError:
        return _fail("the input is nested too deeply; write it with fewer levels")
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not NO_MEMORY.search(str(error)):
            raise
        return _fail(f"there is not enough memory for this; {largest(words)}")


def _fail(message: str) -> int:
    print(f"elman: error: {message}", file=sys.stderr)
    return 2


def _open_streams() -> None:
    """Make the standard streams ones that can be written to, or say at once that there is nowhere to write."""
    if sys.stderr is None:  # closed by `2>&-`: messages are dropped, the work continues
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (it lives as long as the process)
    if sys.stdout is None:
        raise SystemExit(_fail("standard output is closed; send it to a file, or to /dev/null"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a character shows a question mark


def _let_go() -> None:
    """Python flushes standard output once more at exit: drop what could not be written."""
    with suppress(OSError, ValueError):  # it may not be a file at all
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def largest(arguments: Sequence[str]) -> str:
    """What to make smaller: the option with the largest number, if there is one.

    >>> largest(["generate", "runs/a", "--num_beams", "1000000000", "--seed", "7"])
    '--num_beams is 1000000000: try a smaller one'
    """
    words = [part for word in arguments for part in word.split("=", 1)]
    options = [(name, value) for name, value in pairwise(words) if name.startswith("--") and value.isdecimal()]
    name, value = max(options, key=lambda option: int(option[1]), default=("", ""))
    return f"{name} is {value}: try a smaller one" if name else "make the model, the batch or the input smaller"


def _dispatch(arguments: Sequence[str] | None) -> int:
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if parsed.verb is None:
        parser.print_help(sys.stderr)
        return 2
    if parsed.verb not in VERBS:
        raise UnknownNameError("verb", parsed.verb, VERBS)
    rest = flags.pop_flags(parsed.verb, parsed.arguments)
    code: int = import_module(f"elman.cli.{parsed.verb}").run(rest)
    return code


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C end the process while modules are imported: some of them swallow the exception, or crash on it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
                os._exit(130)
            frame = frame.f_back
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # a job in the background ignores it, and should continue to
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _parser() -> argparse.ArgumentParser:
    verbs = "\n".join(f"  {verb:<10} {purpose}" for verb, purpose in VERBS.items())
    parser = argparse.ArgumentParser(
        prog="elman",
        usage="elman VERB [arguments]",
        description="Recurrent sequence models whose state you own.",
        epilog=f"verbs:\n{verbs}\n\n`elman VERB --help` lists the arguments of a verb. All take --import MODULE and "
        "--threads N.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"elman {__version__}")
    parser.add_argument("verb", nargs="?", metavar="VERB", help=argparse.SUPPRESS)
    # A verb parses its own arguments, so that help for one does not import the others.
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser
