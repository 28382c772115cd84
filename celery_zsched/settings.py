"""Every setting, with its type, default, unit and meaning: the scheduler's and the transport's.

Names that are not known are refused, with the name that was probably meant, and all faults are raised together. The
page ``docs/settings.md`` is printed from these tables by ``python -m celery_zsched.settings``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from celery_zsched.errors import ConfigurationError
from celery_zsched.options import FLAG, MAPPING, NAME, TEXT, choice, describe, read_table, seconds, setting, whole
from celery_zsched.server_options import ServerOptions
from celery_zsched.transport_settings import (
    IDLE_OPTIONS,
    KOMBU_OPTIONS,
    TransportSettings,
    read_options,
)
from celery_zsched.types import DEFAULT_PREFIX
from celery_zsched.urls import SCHEMES

__all__ = ["Settings", "TransportSettings", "page"]

#: What the name of each of the scheduler's settings begins with in a Celery configuration.
PREFIX = "zsched_"


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The scheduler's settings, which are also those of the shell and remote-control commands."""

    url: str = setting(TEXT, "", "The server that holds the schedule; the broker's, when that is a Redis or Valkey.")
    prefix: str = setting(
        NAME, DEFAULT_PREFIX, "What every key begins with; the broker's, when its server holds the schedule."
    )
    redis_options: dict[str, Any] = setting(
        MAPPING, {}, "Options of the connection, over the broker's when its server holds the schedule."
    )
    lease_timeout: float = setting(
        seconds(0.5), 5.0, "How long the entries that a scheduler is firing stay with it once it has fallen silent."
    )
    max_block: float = setting(
        seconds(0.1), 30.0, "The longest time an idle scheduler waits before it looks again by itself."
    )
    claim_limit: int = setting(whole(1), 256, "The most due entries that a scheduler takes at once.")
    misfire: str = setting(
        choice("once", "skip", "all"), "once",
        "What becomes of occurrences that were missed: one run for all of them, none, or a run for each.",
    )  # fmt: skip
    misfire_grace: float | None = setting(
        seconds(0).or_none("however late"), None,
        "How late an occurrence may still run. For entries with a `crontab`, Celery's "
        "`beat_cron_starting_deadline` stands in its place where that is set.",
    )  # fmt: skip
    misfire_limit: int = setting(whole(1), 100, "The most missed occurrences that `all` makes up for; the newest stay.")
    overlap: str = setting(
        choice("allow", "skip", "buffer_one"), "allow",
        "What to do when an entry is due while its last run goes on: run, skip, or run once it has ended. Workers "
        "report their runs; on a broker that is not ours they need `import celery_zsched` for that.",
    )  # fmt: skip
    run_lease: float = setting(
        seconds(1), 40.0,
        "How long a run that may not overlap with the next still counts once its worker has fallen silent, or its "
        "message is in no queue of our broker and no worker has begun it. Where tasks are acked late, longer than the "
        "broker keeps a message with a silent worker.",
    )  # fmt: skip
    history_limit: int = setting(whole(0), 20, "How many past occurrences are remembered for an entry.")
    settle_time: float = setting(
        seconds(1), 300.0,
        "An entry of `beat_schedule` goes when no live scheduler has declared it for so long. Schedulers call three "
        "times in it, or once a minute; one that has not said that it ends counts as live for 15 s at least, and for "
        "150 s while it is connected.",
    )  # fmt: skip
    release: str = setting(
        TEXT, "", "What this release of the app is called where schedulers are listed. It may stay the same for ever."
    )
    done_time: float = setting(seconds(0), 86_400.0, "How long an entry that has run out is still listed.")
    send_events: bool = setting(
        FLAG, False,
        "Send a Celery event of each occurrence: `zsched-fired`, `zsched-skipped`, `zsched-missed`. It costs a message "
        "each. Workers that send events (`-E`) tell of dead messages by `zsched-buried`.",
    )  # fmt: skip
    quarantine_after: int = setting(
        whole(1),
        3,
        "How many tries in a row an entry may fail before it is set aside, to be tried again ever later (after 30 s, "
        "then twice as long each time, an hour at most) until it can be sent.",
    )

    @classmethod
    def from_conf(cls, conf: Any) -> Settings:
        """Read the configuration of a Celery app (``app.conf``), or any mapping with the same names.

        A name may be in upper case, and may carry the app's namespace: ``zsched_url``, ``ZSCHED_URL`` and
        ``CELERY_ZSCHED_URL`` are the same setting. Raises :class:`ConfigurationError` with all faults.
        """
        # An app that nobody has used yet answers with a pending configuration; its data is the real one.
        conf = getattr(conf, "data", conf)
        given, written = _gather(conf)
        values, faults = read_table(cls, given, spell=lambda name: written.get(name, PREFIX + name))
        if not given.get("url"):
            values.update(_like_broker(conf, values, faults))
        elif "url" in values and _scheme(values["url"]) not in SCHEMES:
            faults.append(f"{written['url']} {_wrong_scheme(values['url'])}")
        if faults:
            raise ConfigurationError(*faults)
        return cls(**values)


def _gather(conf: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Return our settings by their short names, and the names as the user wrote them."""
    namespaces = {"", "celery_", (getattr(conf, "prefix", None) or "").lower()}
    given: dict[str, Any] = {}
    written: dict[str, str] = {}
    # The last mapping of a Celery configuration holds its defaults, and what is asked first has the last word.
    for mapping in getattr(conf, "maps", [conf]):
        for key in list(mapping):
            for namespace in namespaces:
                start = namespace + PREFIX
                if isinstance(key, str) and key.lower().startswith(start):
                    name = key.lower().removeprefix(start)
                    if name not in given:
                        given[name], written[name] = mapping[key], key
    return given, written


def _like_broker(conf: Any, values: Mapping[str, Any], faults: list[str]) -> dict[str, Any]:
    """Return the URL, the prefix and the options of a broker that can hold the schedule too."""
    urls = getattr(conf, "broker_url", None) or conf.get("broker_url")
    alternatives = urls.split(";") if isinstance(urls, str) else list(urls or ())
    remedy = "set zsched_url to the Redis or Valkey server that shall hold the schedule, like redis://localhost:6379/0"
    if not alternatives:
        faults.append(f"there is no broker_url; {remedy}")
        return {}
    if _scheme(alternatives[0]) not in SCHEMES:
        faults.append(f"the broker is {_scheme(alternatives[0])}://…, which cannot hold the schedule; {remedy}")
        return {}
    if len(alternatives) > 1 and _scheme(alternatives[0]) != "sentinel":
        faults.append(f"broker_url names {len(alternatives)} servers, and the schedule lives on one; {remedy}")
        return {}
    options, ssl = conf.get("broker_transport_options") or {}, conf.get("broker_use_ssl")
    transport, faulty, _ = read_options(options, "broker_transport_options")
    faults += faulty
    broker = TransportSettings(**transport)
    connection = broker.connection | ({"ssl": ssl} if ssl else {})
    return {
        "url": ";".join(alternatives),
        "prefix": values.get("prefix", broker.key_prefix),
        "redis_options": connection | values.get("redis_options", {}),
    }


def _scheme(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    return scheme.lower().removeprefix("zsched+") if separator else ""


def _wrong_scheme(url: str) -> str:
    scheme = _scheme(url)
    known = ", ".join(f"{name}://" for name in SCHEMES)
    return f"has the scheme {scheme}://; it must be one of {known}" if scheme else f"has no scheme; it needs {known}"


_PAGE = """\
# Settings

Printed by `python -m celery_zsched.settings`; a test compares this page with the code. Names that are not known are
refused at start with the name that was probably meant, and all faults are told at once. Durations are in seconds; a
`timedelta` will do too.

## The scheduler

Read from the Celery configuration, in any of its spellings: `app.conf.zsched_url`, `ZSCHED_URL`, or `CELERY_ZSCHED_URL`
with `config_from_object(..., namespace="CELERY")`.

{scheduler}

## The transport

Read from `broker_transport_options`.

{transport}

`visibility_timeout` is taken as `lease_timeout` when it is shorter than the default; a longer one is not needed, since
leases are renewed while a task runs.

### Options of kombu's Redis transport that change nothing

They are accepted, so that a configuration need not be changed; one warning at start names those that ask for something
else.

{idle}

These are read by kombu itself and mean what they always did: {kombu}.

## The connection

Read from `broker_transport_options` and `zsched_redis_options`, and from the query of a URL where
a value can be written there.

{connection}
"""


def page() -> str:
    """Return ``docs/settings.md``."""
    return _PAGE.format(
        scheduler=describe(Settings, spell=lambda name: PREFIX + name),
        transport=describe(TransportSettings),
        connection=describe(ServerOptions),
        idle="\n".join(f"- `{name}`: {idle.reason}." for name, idle in IDLE_OPTIONS.items()),
        kombu=_listed(KOMBU_OPTIONS),
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


if __name__ == "__main__":
    sys.stdout.write(page())
