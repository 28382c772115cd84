"""What ``broker_transport_options`` may hold: our own options, and every one that kombu's Redis transports accept.

Each option of kombu's is honoured, mapped onto ours, or named in a notice because it changes nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from celery_zsched.errors import ConfigurationError
from celery_zsched.options import FLAG, NAME, TEXT, Kind, choice, fields, read_table, seconds, setting, whole
from celery_zsched.server_options import ServerOptions, split_options
from celery_zsched.types import DEFAULT_PREFIX


def _levels(value: Any) -> tuple[int, ...]:
    steps = tuple(sorted({int(step) for step in value}))
    if not steps or steps[0] < 0:
        raise ValueError
    return steps


PRIORITY_STEPS = Kind("a list of whole numbers, 0 or more", _levels)


@dataclass(frozen=True, kw_only=True, slots=True)
class TransportSettings:
    """What ``broker_transport_options`` may hold. Durations are in seconds."""

    prefix: str = setting(NAME, DEFAULT_PREFIX, "What every key begins with.")
    global_keyprefix: str = setting(TEXT, "", "Put in front of `prefix`; kombu's name for the same wish.")
    lease_timeout: float = setting(
        seconds(0.5), 30.0,
        "How long a message stays with a worker that has fallen silent. Leases are renewed while a task runs, however "
        "long it takes.",
    )  # fmt: skip
    delivery_limit: int | None = setting(
        whole(1).or_none("no limit"), 20,
        "How often a message is delivered before it is set aside as dead. The queue argument `x-delivery-limit` has "
        "the last word.",
    )  # fmt: skip
    claim_limit: int = setting(
        whole(1), 64, "The most messages taken in one round trip; never more than the prefetch credit."
    )
    max_block: float = setting(
        seconds(0.1), 30.0, "The longest time an idle consumer waits before it looks again by itself."
    )
    stall_timeout: float | None = setting(
        seconds(1).or_none("never"), None,
        "A worker whose main loop has stood still for so long lets its messages go to others. Not for the solo pool, "
        "whose main loop stands still while a task runs.",
    )  # fmt: skip
    priority_steps: tuple[int, ...] = setting(
        PRIORITY_STEPS, tuple(range(10)), "The priority levels kept apart; a priority counts for the level below it."
    )
    priority_order: str = setting(
        choice("redis", "amqp"), "redis", "Which priority goes first: `redis` the lowest (0), `amqp` the highest."
    )
    queue_order_strategy: str = setting(
        choice("round_robin", "priority", "sorted"), "round_robin",
        "Which of several queues is served next: each in turn, in the order given, or in the order of their names.",
    )  # fmt: skip
    dead_letter_expired: bool = setting(FLAG, False, "Keep expired messages with the dead letters.")
    dead_letter_rejected: bool = setting(FLAG, False, "Keep messages rejected without requeue with the dead letters.")
    dead_limit: int = setting(whole(0), 10_000, "The most dead letters kept for a queue; the oldest go first.")
    deadletter_queue: str | None = setting(
        TEXT.or_none("none"), None, "Where messages go that no queue is bound for; kombu's option."
    )

    #: What goes to the connection; see :class:`~celery_zsched.server_options.ServerOptions`.
    connection: dict[str, Any] = field(default_factory=dict)

    @property
    def key_prefix(self) -> str:
        """What every key begins with, kombu's ``global_keyprefix`` included."""
        return f"{self.global_keyprefix}{self.prefix}"

    @classmethod
    def from_options(
        cls, options: Mapping[str, Any], *, source: str = "broker_transport_options"
    ) -> tuple[TransportSettings, tuple[str, ...]]:
        """Read a Celery configuration's transport options.

        Returns the settings, and a sentence for each option of kombu's that changes nothing here, to be shown once.
        Raises :class:`ConfigurationError` with all faults.
        """
        values, faults, notices = read_options(options, source)
        if faults:
            raise ConfigurationError(*faults)
        return cls(**values), tuple(notices)


class Idle(NamedTuple):
    """An option of kombu's that changes nothing here: the values that ask for what is done anyway, and the reason."""

    harmless: tuple[Any, ...]
    reason: str


_NO_UNACKED = "messages being worked on are held by leases, not by a table of unacked ones"

#: Options of kombu's Redis transports (5.4 to 5.7) that are accepted and change nothing.
IDLE_OPTIONS: dict[str, Idle] = {
    "ack_emulation": Idle((True,), "every message is acked; a consumer with no_ack removes on claim"),
    "body_encoding": Idle((None, "", "base64"), "bodies are stored as they are"),
    "fanout_patterns": Idle((True,), "broadcasts are always filtered by routing key"),
    "fanout_prefix": Idle((True,), "broadcasts always carry the prefix and the database"),
    "polling_interval": Idle((None,), "nothing polls; max_block bounds an idle wait"),
    "reauth_check_interval": Idle((), "credentials are renewed by the client itself"),
    "sentinel_fanout_compat": Idle((False,), "broadcasts do not reach workers on kombu's own transport"),
    "sep": Idle((), "bindings are stored without a separator"),
    "unacked_index_key": Idle((), _NO_UNACKED),
    "unacked_key": Idle((), _NO_UNACKED),
    "unacked_mutex_expire": Idle((), _NO_UNACKED),
    "unacked_mutex_key": Idle((), _NO_UNACKED),
    "unacked_restore_interval": Idle((), _NO_UNACKED),
    "unacked_restore_limit": Idle((), _NO_UNACKED),
    "unacked_restore_throttle": Idle((), _NO_UNACKED),
}

#: Options that kombu's ``Connection`` reads by itself, whatever the transport.
KOMBU_OPTIONS = frozenset(
    {"callback", "connect_retries_timeout", "errback", "interval_max", "interval_start", "interval_step", "max_retries"}
)


def read_options(options: Mapping[str, Any], source: str) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return values, faults and notices."""

    def spell(name: str) -> str:
        return f"{source}[{name!r}]"

    notices = [
        f"{spell(name)} = {options[name]!r} changes nothing: {idle.reason}"
        for name, idle in IDLE_OPTIONS.items()
        if name in options and options[name] not in idle.harmless
    ]
    connection, ours = split_options(options)
    visibility = ours.pop("visibility_timeout", None)
    also = [*IDLE_OPTIONS, *KOMBU_OPTIONS, *fields(ServerOptions), "visibility_timeout"]
    values, faults = read_table(TransportSettings, ours, spell=spell, also=also)
    # The connection reads its options again, together with the URL; here it is about telling all faults at once.
    set_options = {name: value for name, value in connection.items() if value is not None}
    faults += read_table(ServerOptions, set_options, spell=spell)[1]
    values["connection"] = connection
    if visibility is not None and "lease_timeout" not in ours:
        _map_visibility(visibility, values, faults, notices, spell("visibility_timeout"))
    return values, faults, notices


def _map_visibility(visibility: Any, values: dict[str, Any], faults: list[str], notices: list[str], name: str) -> None:
    # It had to be longer than the longest task, so a long one asks for nothing that renewed leases do not give; taken
    # as the lease it would leave a dead worker's tasks lying for hours. A short one asks for quick redelivery.
    read, faulty = read_table(TransportSettings, {"lease_timeout": visibility}, spell=lambda _: name)
    faults += faulty
    usual = TransportSettings().lease_timeout
    if (asked := read.get("lease_timeout", usual)) < usual:
        values["lease_timeout"] = asked
    elif asked > usual:
        notices.append(
            f"{name} = {visibility!r} is not needed: a message is held by a lease of {usual:g} seconds that is renewed "
            f"while its task runs; set lease_timeout for another one"
        )
