"""A kombu message as the body of an item on a timeline, and back: pure, no I/O.

::

    <task name>\n
    [<time to live, microseconds> ]<JSON: headers, properties, content type, content encoding>\n
    <the body, raw bytes>

The task's name comes first, so that a script can tell tasks apart without parsing JSON, and the time to live second,
so that it can drop what has expired. What every Celery message says alike is left out and filled in again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timezone, tzinfo
from typing import Any

from celery_zsched.types import DEFAULT_PREFIX, SECOND_US, Mark, from_us, to_us

#: A message as kombu's virtual transports hold it.
RawMessage = dict[str, Any]

#: Headers of Celery's task protocol 2 that are left out while they say what they say by default.
_TASK_HEADERS: dict[str, Any] = {
    "lang": "py",
    "shadow": None,
    "eta": None,
    "expires": None,
    "group": None,
    "group_index": None,
    "retries": 0,
    "timelimit": [None, None],
    "parent_id": None,
    "ignore_result": False,
    "replaced_task_nesting": 0,
    "stamped_headers": None,
    "stamps": {},
}
_TASK_KEYS = frozenset(_TASK_HEADERS)
_PROPERTIES: dict[str, Any] = {"delivery_mode": 2, "priority": 0, "reply_to": ""}
_CONTENT_TYPE, _CONTENT_ENCODING = "application/json", "utf-8"

#: Properties that mean something only between a kombu publisher and its own transport, and two options of Celery's that
#: are in the headers already.
_TRANSIENT = frozenset({"delivery_tag", "body_encoding", "delivery_info", "argsrepr", "kwargsrepr"})

#: Causes of a firing that the high-water mark guards: a repeat of one is refused.
MARKED_CAUSES = frozenset({"schedule", "catch-up"})


def encode(message: Mapping[str, Any], *, dumps: Callable[[Any], str] | None = None) -> bytes:
    """Return a message as a body. ``dumps`` turns headers into JSON; the standard library's by default."""
    headers: dict[str, Any] = message["headers"]
    properties: dict[str, Any] = message["properties"]
    name = headers.get("task") or ""
    kept: dict[str, Any]
    if headers.keys() >= _TASK_KEYS and isinstance(name, str):
        kept = {key: value for key, value in headers.items() if key not in _TASK_KEYS or value != _TASK_HEADERS[key]}
        del kept["task"]
        if (root := kept.get("root_id")) is not None and root == kept.get("id"):
            del kept["root_id"]
        kind = 1
    else:
        name = name if isinstance(name, str) else ""
        kept = headers
        kind = 0
    props = {
        key: value
        for key, value in properties.items()
        if key not in _TRANSIENT and (key not in _PROPERTIES or value != _PROPERTIES[key])
    }
    if kind and (correlation := props.get("correlation_id")) is not None and correlation == kept.get("id"):
        del props["correlation_id"]
        kind = 2
    missing = [key for key in _PROPERTIES if key not in properties]
    info = properties.get("delivery_info") or {}
    row: list[Any] = [kind, kept, props, info.get("exchange", ""), info.get("routing_key", "")]
    content = (message.get("content-type"), message.get("content-encoding"))
    if missing or content != (_CONTENT_TYPE, _CONTENT_ENCODING):
        row += [*content, missing]
    body = message["body"]
    if isinstance(body, str):
        body = body.encode()
    text = (dumps or _dumps)(row)
    ttl = time_to_live_us(properties)
    return f"{_escape(name)}\n{'' if ttl is None else f'{ttl} '}{text}\n".encode() + (body or b"")


def decode(data: bytes, *, loads: Callable[[str], Any] | None = None) -> RawMessage:
    """Return the message that a body holds; raises ``ValueError`` for anything else."""
    try:
        name_end = data.index(b"\n")
        text_end = data.index(b"\n", name_end + 1)
        text = data[name_end + 1 : text_end].decode()
        if text[0] != "[":
            text = text.partition(" ")[2]
        kind, headers, properties, exchange, routing_key, *rest = (loads or json.loads)(text)
    except (ValueError, IndexError, TypeError) as exc:
        raise ValueError(f"not a message of this transport: {data[:80]!r}") from exc
    if kind:
        headers = _TASK_HEADERS | headers
        headers["task"] = _unescape(data[:name_end].decode())
        headers.setdefault("root_id", headers.get("id"))
        # The two that are not plain values must not be shared between messages.
        headers["timelimit"] = list(headers["timelimit"])
        headers["stamps"] = dict(headers["stamps"])
        if kind == 2:
            properties["correlation_id"] = headers["id"]
    properties = _PROPERTIES | properties
    content_type, content_encoding = _CONTENT_TYPE, _CONTENT_ENCODING
    if rest:
        content_type, content_encoding, missing = rest
        for key in missing:
            properties.pop(key, None)
    properties["delivery_info"] = {"exchange": exchange, "routing_key": routing_key}
    return {
        "body": data[text_end + 1 :],
        "headers": headers,
        "properties": properties,
        "content-type": content_type,
        "content-encoding": content_encoding,
    }


def task_name(data: bytes) -> str:
    """Return the name of the task that a body is for; an empty text when it is for none."""
    return _unescape(data[: max(0, data.find(b"\n"))].decode(errors="replace"))


def task_id(headers: Mapping[str, Any]) -> str | None:
    """Return the task's own id, where the headers name one that can be used."""
    found = headers.get("id")
    return found if isinstance(found, str) and found else None


def eta_us(eta: Any, zone: Callable[[], tzinfo] | None = None) -> int | None:
    """Return an ``eta`` header as an instant; None when there is none, or when it cannot be read.

    One without an offset is in ``zone()``, the app's time zone, as Celery's worker reads it.
    """
    if not eta:
        return None
    try:
        moment = eta if isinstance(eta, datetime) else datetime.fromisoformat(str(eta).replace("Z", "+00:00"))
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=zone() if zone else timezone.utc)
        return max(0, to_us(moment))
    except (ValueError, OverflowError):
        return None


def due_us(message: Mapping[str, Any], zone: Callable[[], tzinfo] | None = None) -> int | None:
    """Return the instant before which a message must not be delivered, or None."""
    headers = message["headers"]
    if "task" in headers or "eta" in headers:
        return eta_us(headers.get("eta"), zone)
    # Task protocol 1 has everything in its body.
    body = message.get("body") or b""
    told = b'"eta": "' in body if isinstance(body, bytes) else '"eta": "' in body
    if told and message.get("content-type") == _CONTENT_TYPE:
        try:
            inner = json.loads(body)
        except ValueError:
            return None
        if isinstance(inner, dict) and "task" in inner:
            return eta_us(inner.get("eta"), zone)
    return None


class Countdown(str):
    """An ``eta`` that was computed from a countdown by the publisher's clock; for all others it is text like any."""

    #: The countdown, in microseconds; None in a copy that was made of the text.
    delay_us: int | None = None


def due_text(message: Mapping[str, Any], zone: Callable[[], tzinfo] | None = None) -> str:
    """Return when a message is due, as ``lua/put.lua`` wants it: ``+N`` for a countdown, an instant, or nothing."""
    delay_us = getattr(message["headers"].get("eta"), "delay_us", None)
    if delay_us is not None:
        return f"+{delay_us}"
    due = due_us(message, zone)
    return "" if due is None else str(due)


def localize(message: RawMessage, server_us: int, local_us: int, zone: Callable[[], tzinfo] | None = None) -> None:
    """Tell the ``eta`` and ``expires`` of a delivered message by this machine's clock, which may not be the server's.

    ``server_us`` and ``local_us`` are what both say now. Celery's worker goes by its own clock: if that is behind, it
    would hold what the server has found to be due, and if it is ahead, drop what has not expired.
    """
    headers = message["headers"]
    due = eta_us(headers.get("eta"), zone)
    if due is not None and due > local_us:
        headers["eta"] = from_us(local_us).isoformat()
    off_us = local_us - server_us
    until = eta_us(headers.get("expires"), zone) if abs(off_us) > SECOND_US else None
    if until is not None:
        headers["expires"] = from_us(until + off_us).isoformat()


def time_to_live_us(properties: Mapping[str, Any]) -> int | None:
    """Return how long after its due moment a message is still wanted (AMQP's ``expiration``, milliseconds), or None."""
    expiration = properties.get("expiration")
    if expiration is None:
        return None
    try:
        return max(0, int(float(expiration) * 1000))
    except (TypeError, ValueError, OverflowError):
        return None


def mark_field(schedule: str, entry: str) -> str:
    """Return the field of an entry's high-water mark; apps whose entries have one name may share a queue."""
    return f"{schedule}:{entry}"


def mark_of(headers: Mapping[str, Any], body: bytes | str = b"") -> Mark | None:
    """Return the high-water mark that a firing of a periodic entry must be above, or None for any other message.

    A retry carries the headers of the firing, and is none. By task protocol 1 only the body knows; a serializer in
    which it cannot be seen goes without a mark, since a second firing is better than a retry that is lost.
    """
    told = headers.get("zsched")
    if not isinstance(told, Mapping) or told.get("cause") not in MARKED_CAUSES or headers.get("retries"):
        return None
    if "task" not in headers and b'"retries": 0' not in (body.encode() if isinstance(body, str) else body):
        return None
    try:
        field = mark_field(str(told.get("schedule", DEFAULT_PREFIX)), str(told["entry"]))
        return Mark(field, int(told["epoch"]), int(told["nominal_us"]))
    except (KeyError, TypeError, ValueError):
        return None


#: An encoder that is made once, which for small values takes as long as encoding them.
_dumps = json.JSONEncoder(separators=(",", ":")).encode


def _escape(name: str) -> str:
    return name.replace("\\", "\\\\").replace("\n", "\\n") if "\\" in name or "\n" in name else name


def _unescape(name: str) -> str:
    return name.replace("\\\\", "\0").replace("\\n", "\n").replace("\0", "\\") if "\\" in name else name
