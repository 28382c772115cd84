"""What is asked of many and must happen once: each request has an id, and the server knows what became of it.

A broadcast reaches every worker. Who is first to take a request does it and leaves the answer; the others answer with
that. A request that was taken by somebody who then died is free again after a while, so that asking again does it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from celery_zsched.errors import ConflictError
from celery_zsched.keys import ScheduleKeys
from celery_zsched.operations.site import Site

#: How long a request is known, in seconds: as long as somebody may hear or repeat it.
KNOWN_S = 86_400

#: How long a request stays with who has taken it but has not answered, in seconds.
TAKEN_S = 30

#: How long the answer of who is at it is waited for, in seconds.
PATIENCE_S = 2.0

_DONE, _TAKEN = b"done ", b"taken "


def once(
    site: Site, request: str, do: Callable[[], dict[str, Any]], *, known_s: int = KNOWN_S
) -> tuple[dict[str, Any], bool]:
    """Do something unless the request was done before; return the answer, JSON values, and whether it was done now.

    Raises :class:`~celery_zsched.errors.ConflictError` if somebody else is at it for longer than :data:`PATIENCE_S`.
    What ``do`` raises leaves the request undone.
    """
    key = ScheduleKeys(site.schedules.prefix).request(request)
    client: Any = site.schedules.server.client
    with site.schedules.server.translated("taking a request"):
        patient_until = time.monotonic() + PATIENCE_S
        while not client.set(key, _TAKEN + site.schedules.timeline.holder.encode(), nx=True, ex=TAKEN_S):
            known = client.get(key) or b""
            if known.startswith(_DONE):
                return json.loads(known[len(_DONE) :]), False
            if time.monotonic() > patient_until:
                who = known[len(_TAKEN) :].decode() or "somebody"
                raise ConflictError(
                    f"the request {request} is being done by {who}; ask again in a moment for its answer"
                )
            time.sleep(0.02)
    try:
        answer = do()
    except BaseException:
        with site.schedules.server.translated("giving a request back"):
            client.delete(key)
        raise
    with site.schedules.server.translated("answering a request"):
        client.set(key, _DONE + json.dumps(answer, separators=(",", ":")).encode(), ex=known_s)
    return answer, True


def agree(site: Site, request: str, value: int) -> int:
    """Return the number that was first given for a request: this one, if nobody gave one before."""
    key = ScheduleKeys(site.schedules.prefix).request(request)
    with site.schedules.server.translated("agreeing on a request"):
        client: Any = site.schedules.server.client
        if client.set(key, str(value), nx=True, ex=KNOWN_S):
            return value
        return int(client.get(key) or value)
