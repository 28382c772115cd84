"""Coming from kombu's own Redis transport, and going back: waiting messages are moved, none lost and none repeated.

kombu keeps a queue as lists, one for each priority step, and what its workers hold in the hash ``unacked``. Neither is
touched by this transport otherwise, so both may be used on one database while a system is switched over.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from kombu.utils.uuid import uuid

from celery_zsched import message as wire_format
from celery_zsched.timeline import MAX_BATCH
from celery_zsched.transport.channel import Channel
from celery_zsched.transport.putting import PutAll, Row
from celery_zsched.transport.sending import app_time_zone, read_headers, write_headers
from celery_zsched.types import Upcoming

logger = logging.getLogger("celery_zsched.transport")

#: kombu's defaults.
SEPARATOR, PRIORITY_STEPS, UNACKED, UNACKED_INDEX = "\x06\x16", (0, 3, 6, 9), "unacked", "unacked_index"

#: Added to the name of a list of kombu's while its messages are being moved: what is there was moved in part when the
#: move was cut short, and is looked at first by the next.
MOVING = ":zsched-moving"

#: Why what is handed back is parked for the moment of the move.
HANDED_BACK = "handed back to kombu's transport"


def take_over(
    channel: Channel,
    queues: Iterable[str],
    *,
    keyprefix: str = "",
    priority_steps: Sequence[int] = PRIORITY_STEPS,
    unacked: bool = False,
) -> dict[str, int]:
    """Move what waits in kombu's lists to the queues of the same names; return how many for each queue.

    ``keyprefix`` is the old ``global_keyprefix``. With ``unacked``, what kombu's workers held is moved as well: only
    once all of them are stopped, or it runs twice. It can be run again at any time: what was moved is not moved twice.
    """
    client = channel.broker.server.client
    taken: dict[str, int] = {}
    for queue in queues:
        count = 0
        for step in priority_steps:
            name = f"{keyprefix}{queue}{SEPARATOR}{step}" if step else f"{keyprefix}{queue}"
            count += _take_list(channel, client, queue, name)
        taken[queue] = count
    if unacked:
        for queue, count in _take_unacked(channel, client, keyprefix).items():
            taken[queue] = taken.get(queue, 0) + count
    return taken


def _take_list(channel: Channel, client: Any, queue: str, name: str) -> int:
    moving, count = f"{name}{MOVING}", 0
    while True:
        # Out of the reach of kombu's workers first, then to the timeline, then away.
        while client.llen(moving) < MAX_BATCH and client.lmove(name, moving, "RIGHT", "LEFT") is not None:
            pass
        texts = client.lrange(moving, 0, -1)
        if not texts:
            return count
        texts.reverse()
        count += _put(channel, [(queue, text) for text in texts])
        client.ltrim(moving, len(texts), -1)


def _take_unacked(channel: Channel, client: Any, keyprefix: str) -> dict[str, int]:
    taken: dict[str, int] = {}
    held, index = f"{keyprefix}{UNACKED}", f"{keyprefix}{UNACKED_INDEX}"
    for tag, text in client.hscan_iter(held):
        raw, exchange, routing_key = json.loads(text)
        for queue in channel._lookup(exchange, routing_key):
            taken[queue] = taken.get(queue, 0) + _put(channel, [(queue, json.dumps(raw).encode())])
        client.hdel(held, tag)
        client.zrem(index, tag)
    return taken


def _put(channel: Channel, found: Sequence[tuple[str, bytes]]) -> int:
    rows: dict[str, list[Row]] = {}
    for queue, text in found:
        raw = read_headers(text.decode())
        body, properties = raw.get("body") or b"", raw["properties"]
        if properties.get("body_encoding") == "base64":
            body = base64.b64decode(body)
        made = {**raw, "body": body, "headers": raw.get("headers") or {}}
        # Without an id of its own, the tag of kombu's tells a repeated move.
        id_ = wire_format.task_id(made["headers"]) or str(properties.get("delivery_tag") or uuid())
        due = wire_format.due_us(made, app_time_zone)
        level = channel.broker.level(properties.get("priority"))
        encoded = wire_format.encode(made, dumps=write_headers)
        rows.setdefault(queue, []).append([id_, encoded, "" if due is None else str(due), level, "again", "", "", ""])
    PutAll(channel.broker, list(rows.items())).finish()
    return len(found)


def hand_back(
    channel: Channel, queues: Iterable[str], *, keyprefix: str = "", priority_steps: Sequence[int] = PRIORITY_STEPS
) -> dict[str, int]:
    """Move what waits in our queues, due or not, to kombu's lists; return how many for each queue.

    Stop our workers first: what they hold is theirs. A task with an ETA is held by kombu's workers until then.
    """
    client = channel.broker.server.client
    handed: dict[str, int] = {}
    for queue in queues:
        timeline = channel.broker.timeline(queue)
        count = 0
        while page := timeline.upcoming(MAX_BATCH):
            # Parked first, so that no worker takes what is on its way; a move that is cut short leaves it there.
            timeline.park([one.id for one in page], HANDED_BACK)
            count += _give(client, queue, page, keyprefix, priority_steps)
            timeline.remove([one.id for one in page])
        handed[queue] = count
    return handed


def _give(client: Any, queue: str, page: Sequence[Upcoming], keyprefix: str, steps: Sequence[int]) -> int:
    with client.pipeline(transaction=True) as pipe:
        for one in page:
            raw = wire_format.decode(one.body, loads=read_headers)
            raw["body"] = base64.b64encode(raw["body"]).decode()
            raw["properties"].update(body_encoding="base64", delivery_tag=uuid())
            priority = int(raw["properties"].get("priority") or 0)
            step = max([step for step in steps if step <= priority], default=steps[0])
            name = f"{keyprefix}{queue}{SEPARATOR}{step}" if step else f"{keyprefix}{queue}"
            pipe.lpush(name, write_headers(raw))
        pipe.execute()
    return len(page)
