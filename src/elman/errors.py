"""The errors that Elman raises.

ElmanError
├── InputError        a tensor, length, state or option that does not fit      (also a ValueError)
├── UnknownNameError  a name that is not registered: lists the names that are   (also a KeyError)
├── FileError         a file that is missing, truncated, foreign or of a newer version
├── TrainingError     a run that cannot continue, because its loss is not a number
├── FitError          a model that cannot be fitted to these data: degenerate, impossible, or not a number
├── FrozenError       an assignment to an attribute of a model                  (also an AttributeError)
├── KernelError       a kernel that is not available or does not support this
└── MissingExtraError an optional dependency that is not installed              (also an ImportError)

Every message says what was given, what is accepted, and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ElmanError(Exception):
    """The root of everything that Elman raises on purpose.

    >>> try:
    ...     elman.cell("lstn", 3, 4)
    ... except ElmanError as error:
    ...     print(str(error).partition(";")[0])
    unknown cell 'lstn'
    """


class InputError(ElmanError, ValueError):
    """An argument that a public function does not accept."""


class UnknownNameError(ElmanError, KeyError):
    """A name that is not in a registry."""

    def __init__(self, kind: str, given: object, known: Iterable[str]) -> None:
        names = sorted(known)
        super().__init__(f"unknown {kind} {given!r}; there are {', '.join(names)}.{nearest(given, names)}")

    def __str__(self) -> str:  # KeyError would print the repr of the message
        return str(self.args[0])


def nearest(given: object, known: Iterable[str]) -> str:
    """A question that suggests the name most similar to `given`, in capitals or not, if there is one.

    >>> nearest("bidirectionl", ["layers", "bidirectional"])
    " Did you mean 'bidirectional'?"
    """
    names = {name.casefold(): name for name in sorted(known)}
    near = difflib.get_close_matches(str(given).casefold(), names, n=1)
    return f" Did you mean {names[near[0]]!r}?" if near else ""


class FileError(ElmanError):
    """A file that cannot be used."""


class TrainingError(ElmanError, RuntimeError):
    """A run that cannot continue."""


class FitError(ElmanError, RuntimeError):
    """A fit that failed: data of probability zero, a covariance that collapsed, parameters that are not numbers."""


class FrozenError(ElmanError, AttributeError):
    """An assignment to a model, which is a value and does not change."""

    def __init__(self, model: object, name: str) -> None:
        super().__init__(
            f"{name} of this {type(model).__name__} cannot be set or deleted: a model is a value and never changes. "
            "Build or train another (copy.deepcopy of an HMM gives one that can be fitted); what changes, such as a "
            "state, is an argument and a result."
        )


class KernelError(ElmanError, RuntimeError):
    """A kernel that is not available, or does not support what was requested."""


class MissingExtraError(ElmanError, ImportError):
    """An optional dependency that is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs {package}, which is not installed: pip install 'elman[{extra}]'")
