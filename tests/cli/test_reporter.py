"""Progress where there is no terminal: reminders now and then, and the last step once there was a step before it."""

from __future__ import annotations

import io

import pytest

from resetcli.cli import output


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    return now


def told(clock: list[float], steps: list[float], total: int | None) -> list[str]:
    stream = io.StringIO()
    with output.RichReporter(stream=stream).phase("work", total) as advance:
        for seconds in steps:
            clock[0] += seconds
            advance(1)
    return stream.getvalue().splitlines()


def test_a_log_does_not_stop_short_of_the_last_step(clock):
    assert told(clock, [1, 31, 1, 1], 4) == ["work ...", "work: 2 of 4", "work: 4 of 4"]


def test_short_work_is_one_line(clock):
    assert told(clock, [1, 1], 2) == ["work ..."]
    assert told(clock, [1, 31, 1], None) == ["work ...", "work: 2"]
