"""Triggers: when an entry is due. Values without I/O; :func:`next_after` is the one function that all writers use."""

from .at import At
from .base import DEFAULT_ZONE, Trigger, next_after, occurrences, preview
from .celery_forms import from_celery
from .codec import from_json, to_json
from .crontab import Crontab
from .crontext import CronText
from .custom import Custom, register_trigger
from .interval import Interval
from .solar import Solar
from .wallclock import LAST_US, check_zone, zone_name, zone_table

__all__ = [
    "DEFAULT_ZONE",
    "LAST_US",
    "At",
    "CronText",
    "Crontab",
    "Custom",
    "Interval",
    "Solar",
    "Trigger",
    "check_zone",
    "from_celery",
    "from_json",
    "next_after",
    "occurrences",
    "preview",
    "register_trigger",
    "to_json",
    "zone_name",
    "zone_table",
]
