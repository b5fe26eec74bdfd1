"""The arithmetic of a memory's life."""
import pytest

import memory_tiered as m


@pytest.mark.parametrize("hours, expected",
                         [(0, 1.0), (1, 0.99), (24, 0.99 ** 24), (168, 0.99 ** 168), (-5, 1.0)])
def test_decay_is_a_function_of_time(hours, expected):
    assert m.decayed(1.0, hours) == pytest.approx(expected)


def test_the_published_arithmetic_of_099():
    assert m.decayed(1, 69) == pytest.approx(0.5, abs=0.001)
    assert m.decayed(1, 298) == pytest.approx(0.05, abs=0.001)
    score = 1.0
    for _ in range(60):  # an access once a day settles where the README says
        score = m.refreshed(m.decayed(score, 24))
    assert score == pytest.approx(0.47, abs=0.01)
    assert m.decayed(score, 24) == pytest.approx(0.37, abs=0.01)


@pytest.mark.parametrize("days", [3, 7, 30])
def test_rate_of_half_life(days):
    assert m.decayed(1, days * 24, m.rate_of_half_life(days)) == pytest.approx(0.5)


@pytest.mark.parametrize("status, days, importance, expected", [
    ("active", 89, 0.1, "active"), ("active", 91, 0.1, "inactive"),
    ("active", 181, 0.1, "archived"),
    ("inactive", 181, 0.39, "archived"), ("active", 999, 0.4, "active"),
    ("deprecated", 999, 0.1, "deprecated")])
def test_retention(status, days, importance, expected):
    assert m.retention_status(status, days, importance, m.Config()) == expected
