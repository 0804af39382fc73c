"""How good a model is: numbers by name, and which of them is the primary one."""

from __future__ import annotations

from dataclasses import dataclass, field

from elman.files.config import Json
from elman.tables import Table


@dataclass(frozen=True)
class Scores:
    """What an evaluation found.

    >>> Scores({"accuracy": 0.9}, "accuracy", larger_is_better=True).better_than(0.8)
    True

    Args:
        numbers: by name
        primary: the name of the one by which the best model is chosen
        larger_is_better: whether that one is better when it is larger
        secondary: names of others that are shown and recorded while a model trains
        details: what else there is to say, for JSON
        stop_early: whether the task sees no use in more steps
        remark: what has to be said beside the numbers wherever they are shown
    """

    numbers: dict[str, float]
    primary: str
    larger_is_better: bool = False
    secondary: tuple[str, ...] = ()
    details: dict[str, Json] = field(default_factory=dict)
    stop_early: bool = False
    remark: str = ""

    @property
    def value(self) -> float:
        """The primary number."""
        return self.numbers[self.primary]

    def better_than(self, best: float | None) -> bool:
        """Whether this is better than the best so far, if there is one."""
        if best is None:
            return True
        return self.value > best if self.larger_is_better else self.value < best

    def metrics(self, part: str) -> dict[str, float]:
        """What a line of metrics says of the scores on a part of the data: `part` is the primary number."""
        return {part: self.value, **{name: self.numbers[name] for name in self.secondary}}

    def summary(self) -> str:
        """The primary number and the secondary ones, as a person reads them.

        >>> Scores({"nats_per_token": 1.5, "perplexity": 4.4817}, "nats_per_token", secondary=("perplexity",)).summary()
        'nats per token 1.5000  perplexity 4.4817'
        """
        names = dict.fromkeys((self.primary, *self.secondary))
        return "  ".join(f"{name.replace('_', ' ')} {self.numbers[name]:.4f}" for name in names)

    def table(self, title: str = "scores") -> Table:
        """All numbers, with the remark."""
        rows = [(name.replace("_", " "), f"{value:.6g}") for name, value in self.numbers.items()]
        return Table(f"{title} ({self.remark})" if self.remark else title, ("score", "value"), rows)

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def to_json(self) -> dict[str, Json]:
        return {**self.numbers, **self.details}
