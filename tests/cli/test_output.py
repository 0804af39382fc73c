"""Progress is silent for two seconds, and then says how long is left."""

from __future__ import annotations

import pytest

from elman.cli import output


def clock(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """A clock that moves by `seconds` whenever it is read."""
    now = [0.0]

    def read() -> float:
        now[0] += seconds
        return now[0]

    monkeypatch.setattr(output.time, "monotonic", read)


def test_what_is_quick_is_silent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock(monkeypatch, 0.1)
    assert list(output.track([1, 2, 3], "counting")) == [1, 2, 3]
    assert capsys.readouterr() == ("", "")


def test_what_is_slow_says_how_long_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock(monkeypatch, 3.0)
    assert list(output.track([1, 2, 3, 4], "counting")) == [1, 2, 3, 4]
    out, err = capsys.readouterr()
    assert not out
    assert err.splitlines() == ["counting: 1 of 4, 9 s left", "counting: 3 of 4, 3 s left"]
