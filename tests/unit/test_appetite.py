"""How much a consumer takes at once."""

from __future__ import annotations

from celery_zsched.transport.appetite import COURTESY_S, LONG, Appetite


def test_a_single_message_is_taken_at_once_and_the_next_too() -> None:
    """With no backlog there is nothing to wait for."""
    appetite = Appetite()
    assert appetite.limit(8, 64, 0.0) == 1
    appetite.took(1, 0, 0.0)
    assert appetite.limit(8, 64, 0.0) == 1


def test_a_long_backlog_is_taken_in_large_helpings() -> None:
    """The second claim on a long backlog takes all that credit and bound allow."""
    appetite = Appetite()
    appetite.took(1, 10_000, 0.0)
    assert appetite.limit(1000, 64, 0.0) == 64
    assert appetite.limit(8, 64, 0.0) == 8


def test_the_rest_of_a_burst_is_left_to_others_for_a_moment() -> None:
    """Who has taken one of a few waits, and then takes a part."""
    appetite = Appetite()
    appetite.took(1, 9, 0.0)
    assert appetite.limit(8, 64, COURTESY_S / 2) == 0
    assert appetite.limit(8, 64, COURTESY_S * 2) == 3


def test_who_is_alone_takes_all() -> None:
    """If nobody took a part meanwhile, nobody else is hungry."""
    appetite = Appetite()
    appetite.took(1, 9, 0.0)
    appetite.took(3, 6, 0.1)
    assert appetite.limit(8, 64, 0.1) == 6


def test_a_burst_may_still_be_arriving_after_a_ring() -> None:
    """Who was woken for one message leaves the next to others who are idle."""
    appetite = Appetite()
    appetite.took(1, 0, 0.0, rung=True)
    assert appetite.limit(8, 64, 0.0) == 0
    appetite.took(1, LONG * 10, 0.0, rung=True)
    assert appetite.limit(100, 64, 0.0) == 64


def test_no_credit_no_claim() -> None:
    """Without credit nothing is taken, however long the backlog."""
    appetite = Appetite()
    appetite.took(1, 10_000, 0.0)
    assert appetite.limit(0, 64, 0.0) == 0
