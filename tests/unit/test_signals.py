"""A step that must not be broken in two is finished before a request to end the process is granted."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from celery_zsched.signals import undisturbed


class AskedToEndError(Exception):
    """What the handler of these tests raises, as Celery's raises SystemExit."""


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    def handler(number: int, frame: FrameType | None) -> None:
        raise AskedToEndError

    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, old in before.items():
        signal.signal(number, old)


def ask(number: int = signal.SIGTERM) -> None:
    """Ask this process to end."""
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_to_end_waits_until_the_step_is_done(number: int) -> None:
    """The handler runs behind the step, and is in place again."""
    done = []
    with pytest.raises(AskedToEndError), undisturbed():
        ask(number)
        done.append("step")
    assert done == ["step"]
    with pytest.raises(AskedToEndError):
        ask(number)


def test_a_second_request_is_granted_at_once() -> None:
    """Whoever insists need not wait for a step that hangs."""
    done = []
    with pytest.raises(AskedToEndError), undisturbed():
        ask()
        ask(signal.SIGINT)
        done.append("step")
    assert done == []


def test_a_request_waits_for_a_step_that_fails_too() -> None:
    """The error is not lost: it is the context of what the handler raises."""
    with pytest.raises(AskedToEndError) as raised, undisturbed():
        ask()
        raise ValueError("step")
    assert isinstance(raised.value.__context__, ValueError)


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """Nothing is made of it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with undisturbed():
        ask(signal.SIGINT)
        ask(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_thread_in_which_no_handler_runs_does_nothing_about_signals() -> None:
    """A beat inside a worker's thread leaves them to the worker."""
    seen = []

    def step() -> None:
        with undisturbed():
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
    assert seen == [before]
