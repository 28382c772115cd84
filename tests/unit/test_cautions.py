"""What is told at start of a host whose clock is wrong."""

from __future__ import annotations

import time
from itertools import count

from celery_zsched import cautions
from celery_zsched.types import SECOND_US
from tests.stamps import passes


def test_an_answer_that_was_long_on_its_way_does_not_make_the_clock_wrong() -> None:
    """It is asked again: what was read before a pause is no longer true after it."""
    asked = count()

    def ask() -> int:
        server_us = time.time_ns() // 1000 - 3 * SECOND_US
        if not next(asked):
            passes(0.3)
        return server_us

    assert "clock is 3.0 s ahead of the server's" in (cautions.clock(ask) or "")


def test_a_clock_that_is_right_is_no_word_worth() -> None:
    """However slow the answers are, it is asked a few times only."""
    asked = count()

    def ask() -> int:
        server_us = time.time_ns() // 1000
        next(asked)
        passes(0.03)
        return server_us

    assert cautions.clock(ask) is None
    assert next(asked) == cautions.LOOKS
