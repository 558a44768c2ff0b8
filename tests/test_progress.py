"""Progress: what is announced, and when the time that is left is known."""

import time

from sightline import progress


def test_the_time_left_is_told_once_a_tenth_of_the_work_has_shown_the_speed(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for name in progress.stages(("first", "second", "third", "fourth"), (1, 19, 40, 40)):
        now[0] += {"first": 100, "second": 100, "third": 400, "fourth": 400}[name]
    assert capsys.readouterr().err.splitlines() == [
        "2 of 4: second",  # one part in a hundred took 100 s: that says nothing about the rest
        "3 of 4: third, about 13 min left",
        "4 of 4: fourth, about 7 min left",
    ]
