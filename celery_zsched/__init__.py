"""A Celery broker and scheduler on Redis or Valkey, where everything that waits stands on one timeline.

The names below are the public face. They are imported on first use, so that the many short-lived ``celery`` commands
that only look for plugins pay for none of it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from kombu.transport import TRANSPORT_ALIASES

__version__ = "0.1.0"

#: Public name -> the module that holds it.
_HOMES: dict[str, str] = {
    "ConfigurationError": "errors",
    "ConflictError": "errors",
    "Entry": "api",
    "EntryError": "errors",
    "NotFoundError": "errors",
    "Occurrence": "entry",
    "ScheduleError": "errors",
    "Scheduler": "beat",
    "ServerAuthenticationError": "errors",
    "ServerError": "errors",
    "ServerFullError": "errors",
    "ServerUnavailableError": "errors",
    "Transport": "transport",
    "ZschedError": "errors",
    "current": "context",
}

__all__ = ["__version__", *sorted(_HOMES)]

#: Where kombu finds the transport.
_TRANSPORT = "celery_zsched:Transport"

# kombu has no entry points for transports, so importing this package is what makes them known. It reads the scheme
# `zsched+redis` as the transport `zsched` when it opens a URL, and as a whole when it goes on to the next of several.
for _name in ("", "+redis", "+rediss", "+unix", "+sentinel", "+cluster", "+embedded", "+valkey", "+valkeys"):
    TRANSPORT_ALIASES.setdefault(f"zsched{_name}", _TRANSPORT)


# Where Celery is in use already, its apps tell countdowns from now on; otherwise the transport sees to it.
if "celery" in sys.modules:
    import_module("celery_zsched.countdowns").install()

# A worker reports of runs that may not overlap, whatever its broker is.
import_module("celery_zsched.reporting").install()


def __getattr__(name: str) -> Any:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
