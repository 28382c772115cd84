"""Signals that end a process, and steps that they must not break in two."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let a request to end wait until the block is left; the second one is granted at once.

    Python runs signal handlers between any two steps, and Celery's raise :class:`SystemExit`. In a thread other than
    the main one, where no handler runs, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _ENDING}
    asked: list[int] = []

    def restore() -> None:
        for number, handler in before.items():
            if handler is not None:  # None: it was not set by Python, and cannot be
                signal.signal(number, handler)

    def remember(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if len(asked) > 1:
            restore()
            os.kill(os.getpid(), number)

    for number, handler in before.items():
        if handler is not None and handler is not signal.SIG_IGN:
            signal.signal(number, remember)
    try:
        yield
    finally:
        restore()
        if len(asked) == 1:
            os.kill(os.getpid(), asked[0])
