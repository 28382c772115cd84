"""What our maker of messages works out itself instead of leaving it to Celery."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.app import amqp
from celery.utils.saferepr import saferepr
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_zsched.amqp import AMQP, plain_repr

plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
anything = plain | st.lists(plain, max_size=2) | st.dictionaries(st.text(max_size=3), plain, max_size=2)


@settings(deadline=None)
@given(st.lists(anything, max_size=8).flatmap(lambda args: st.sampled_from([args, tuple(args)])))
def test_plain_arguments_are_shown_as_celery_shows_them(args: list[Any] | tuple[Any, ...]) -> None:
    """To the letter, as long as Celery would not cut them; others are left to it."""
    text = plain_repr(args)
    if text is not None and len(text) < AMQP.argsrepr_maxsize:
        assert text == saferepr(args, AMQP.argsrepr_maxsize)


@pytest.mark.parametrize("args", [[], (), [1], (1,), [7, 0], ["report", 2.5, None, True], ['say "so"', "né"]], ids=str)
def test_what_most_tasks_are_given_is_plain(args: Any) -> None:
    """Numbers and short texts, in a list or a tuple."""
    assert plain_repr(args) == saferepr(args, AMQP.argsrepr_maxsize)


@pytest.mark.parametrize("args", [["it's"], ["a\\b"], ["a\nb"], [[1]], [{}], [b"x"], {"a": 1}, "text"], ids=str)
def test_all_else_is_left_to_celery(args: Any) -> None:
    """What Celery escapes, nests or cuts in a way of its own."""
    assert plain_repr(args) is None


@pytest.mark.parametrize("kwargs", [None, {}, {"a": "it's"}], ids=str)
@pytest.mark.parametrize(
    "args", [None, (), [1, "two"], ([1],), ["x" * 2000]], ids=["none", "empty", "plain", "nested", "long"]
)
def test_a_message_is_what_celery_makes(args: Any, kwargs: Any) -> None:
    """Every header, body and property, whoever makes the message; what the sender says of its arguments stands."""
    app = Celery("made", set_as_current=False)
    ours, celerys = AMQP(app), amqp.AMQP(app)
    for told in ({}, {"argsrepr": "(…)", "kwargsrepr": "{…}"}):
        assert ours.as_task_v2("id", "task", args, kwargs, **told) == celerys.as_task_v2(
            "id", "task", args, kwargs, **told
        )
