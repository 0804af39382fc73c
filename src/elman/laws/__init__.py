"""What every recurrence promises, as checks that anyone can run on a core of their own."""

from elman.laws.report import REMEDY, TOLERANCES, Report, Verdict
from elman.laws.sequence import LAWS, TITLES, Row, Sample, check, draw, rows

__all__ = [
    "LAWS", "REMEDY", "TITLES", "TOLERANCES", "Report", "Row", "Sample", "Verdict", "check", "draw", "online", "rows",
    "tree",
]  # fmt: skip
