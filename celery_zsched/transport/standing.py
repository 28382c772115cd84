"""What queues stand under on the server, and what is said when a declaration differs from that."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from celery_zsched.transport.exchanges import AUTO_DELETE_MS

logger = logging.getLogger("celery_zsched.transport")

#: The rules of a queue, in the order of ``lua/declare.lua``: the argument that asks for it, and how many of the rule's
#: units one of the argument's is.
RULES: dict[str, tuple[str, int]] = {
    "expires": ("x-expires", 1),
    "message_ttl": ("x-message-ttl", 1000),
    "max_length": ("x-max-length", 1),
    "delivery_limit": ("x-delivery-limit", 1),
    "auto_delete": ("auto_delete", 1),
}

#: Who has given a queue no name has it named by a UUID: that is how askers name the queues for their replies.
_OF_AN_ASKER = re.compile(r"(amq\.gen-)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

#: How ``lua/put.lua`` is told to give a life to an asker's queue that nobody has declared.
PASSING = f"~{AUTO_DELETE_MS}"


class Standing(NamedTuple):
    """The answer to a declaration."""

    known: bool
    ready: int
    #: How many messages the queue holds because of which it takes on no life.
    withheld: int
    before: dict[str, int]
    rules: dict[str, int]

    @classmethod
    def of(cls, answer: Sequence[Any]) -> Standing:
        """Read the answer of ``lua/declare.lua``."""
        before, rules = (
            {name: int(value) for name, value in zip(RULES, values, strict=True) if value}
            for values in (answer[3:8], answer[8:13])
        )
        return cls(bool(answer[0]), int(answer[1]), int(answer[2]), before, rules)


def gives_rules(arguments: Mapping[str, Any] | None, *, auto_delete: bool) -> bool:
    """Return whether a declaration says what a queue is to stand under; ``None`` for an argument says: no such rule."""
    return auto_delete or any(argument in (arguments or ()) for argument, _ in RULES.values())


def told(rules: Mapping[str, int]) -> str:
    """Return rules as the arguments that ask for them."""
    words = [f"{RULES[name][0]} = {rules[name] // RULES[name][1]}" for name in RULES if name in rules]
    return ", ".join(words).replace("auto_delete = 1", "auto_delete") or "no arguments"


def warn(queue: str, asked: Mapping[str, int], standing: Standing) -> None:
    """Warn where a declaration changed what stood, or was not followed."""
    if standing.withheld:
        life = {name: value for name, value in asked.items() if name in ("expires", "auto_delete")}
        logger.warning(
            "queue %s stands under %s and holds messages (%d), which nobody put there to be deleted: %s of this "
            "declaration is not applied. Declare the queue so once it is empty, or delete it before",
            queue, told(standing.before), standing.withheld, told(life),
        )  # fmt: skip
    if standing.before and standing.before != standing.rules:
        logger.warning(
            "queue %s was declared with %s and stands from now on under %s: the last declaration with arguments "
            "counts. If that was not meant, give the same arguments wherever it is declared, or none",
            queue, told(standing.before), told(standing.rules),
        )  # fmt: skip


def is_reply(message: Mapping[str, Any], queue: str) -> bool:
    """Return whether a message on the default exchange that is no task answers an asker, as ``rpc://`` results do."""
    properties = message["properties"]
    return bool(properties.get("correlation_id") and not properties.get("reply_to") and _OF_AN_ASKER.fullmatch(queue))
