"""An entry's arguments as Celery's own serializer wrote them: kept and handed on, never interpreted."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kombu.exceptions import KombuError
from kombu.serialization import dumps, loads

from celery_zsched.errors import EntryError

#: Serializers whose data can start code when it is read; the schedule holds none of it.
_REFUSED = ("application/x-python-serialize",)


@dataclass(frozen=True, slots=True)
class Payload:
    """What a serializer gave for ``[args, kwargs]``: text, or bytes where the encoding is ``binary``."""

    content_type: str
    encoding: str
    data: str | bytes

    @classmethod
    def of(cls, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, serializer: str = "json") -> Payload:
        """Serialize arguments; :class:`EntryError` says what cannot be, or that the serializer may not be used."""
        try:
            content_type, encoding, data = dumps([list(args), dict(kwargs or {})], serializer=serializer)
        except (KombuError, TypeError, ValueError) as exc:
            raise EntryError(
                f"the arguments cannot be serialized as {serializer!r}: {exc}; give simpler values, "
                "or an entry serializer that knows them"
            ) from exc
        return cls(content_type, encoding, data)

    def __post_init__(self) -> None:
        if self.content_type in _REFUSED:
            raise EntryError(
                f"arguments serialized as {self.content_type} (pickle) are not kept in a schedule, since reading them "
                "can run code; set the entry's serializer to 'json'"
            )

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Return ``args`` and ``kwargs``; :class:`EntryError` when this process cannot read them."""
        try:
            args, kwargs = loads(self.data, self.content_type, self.encoding, accept=[self.content_type])
        except (KombuError, TypeError, ValueError) as exc:
            raise EntryError(f"the stored arguments ({self.content_type}) cannot be read: {exc}") from exc
        return list(args), dict(kwargs)

    def to_json(self) -> dict[str, str]:
        """Return the payload as a JSON object; bytes become base64 text."""
        if isinstance(self.data, bytes):
            return {
                "type": self.content_type,
                "encoding": self.encoding,
                "base64": base64.b64encode(self.data).decode(),
            }
        return {"type": self.content_type, "encoding": self.encoding, "data": self.data}

    @classmethod
    def from_json(cls, document: Any) -> Payload:
        """Make a payload from what :meth:`to_json` gave."""
        text = isinstance(document, Mapping) and all(isinstance(value, str) for value in document.values())
        if text and document.keys() == {"type", "encoding", "data"}:
            return cls(document["type"], document["encoding"], document["data"])
        if text and document.keys() == {"type", "encoding", "base64"}:
            try:
                data = base64.b64decode(document["base64"], validate=True)
            except binascii.Error as exc:
                raise EntryError(f"the stored arguments are no base64: {exc}") from None
            return cls(document["type"], document["encoding"], data)
        raise EntryError(
            "arguments are stored as an object with the texts 'type', 'encoding' and either 'data' or 'base64', "
            f"not as {document!r:.200}"
        )
