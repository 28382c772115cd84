"""Triggers: when an entry is due. Values without I/O; :func:`next_after` is the one function that all writers use."""

from celery_zsched.triggers.at import At
from celery_zsched.triggers.base import DEFAULT_ZONE, Trigger, next_after, occurrences, preview
from celery_zsched.triggers.celery_forms import from_celery
from celery_zsched.triggers.codec import from_json, to_json
from celery_zsched.triggers.crontab import Crontab
from celery_zsched.triggers.crontext import CronText
from celery_zsched.triggers.custom import Custom, register_trigger
from celery_zsched.triggers.interval import Interval
from celery_zsched.triggers.recurrence import Recurrence
from celery_zsched.triggers.solar import Solar
from celery_zsched.triggers.wallclock import LAST_US, check_zone, zone_name, zone_table

__all__ = [
    "DEFAULT_ZONE",
    "LAST_US",
    "At",
    "CronText",
    "Crontab",
    "Custom",
    "Interval",
    "Recurrence",
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
