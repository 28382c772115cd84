"""What a person should know of a server at start though everything works: it may evict, or tell another time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from celery_zsched.connection import Server
from celery_zsched.errors import ServerError
from celery_zsched.types import SECOND_US

#: A host's clock that differs more than this from the server's, in seconds, is worth a word.
CLOCK_S = 1.0

#: An answer that took longer than this, in microseconds, is asked for again, up to so many times in all.
SLOW_US = 20_000
LOOKS = 5


def eviction(server: Server) -> str | None:
    """Return a caution if the server evicts keys when its memory is full.

    A user of limited rights is not let ask, and a refused question would stand in the server's ACL log: then None.
    """
    if server.address.username:
        return None
    try:
        with server.translated("asking for the memory policy"):
            client: Any = server.client
            policy = client.info("memory").get("maxmemory_policy", "noeviction")
    except ServerError:
        return None
    if policy == "noeviction":
        return None
    return (
        f"{server.masked} evicts keys when its memory is full (maxmemory-policy is {policy}), and what waits with "
        "them; set maxmemory-policy to noeviction"
    )


def clock(ask: Callable[[], int]) -> str | None:
    """Return a caution if this host's clock is not the server's, which ``ask`` returns in microseconds.

    An answer that was long on its way tells little, so then it is asked again.
    """
    looks: list[tuple[int, int]] = []
    while len(looks) < LOOKS and (not looks or min(looks)[0] > SLOW_US):
        asked_us = time.time_ns() // 1000
        server_us = ask()
        took_us = time.time_ns() // 1000 - asked_us
        looks.append((took_us, asked_us + took_us // 2 - server_us))
    offset_s = min(looks)[1] / SECOND_US
    if abs(offset_s) < CLOCK_S:
        return None
    return (
        f"this host's clock is {abs(offset_s):.1f} s {'ahead of' if offset_s > 0 else 'behind'} the server's, which "
        "alone decides what is due; times in this log and countdowns made here are off by as much: set the host's clock"
    )
