"""Pure decisions about entries: which occurrences are due, which are sent, and what comes next."""

from celery_zsched.planner.acknowledge import Found, acknowledge
from celery_zsched.planner.ahead import Ahead, ahead, begin_anew
from celery_zsched.planner.decide import Plan, Reason, Rules, Send, first, plan, release_buffered, resume
from celery_zsched.planner.occurrences import due_of, expires_of, has_run_out, next_nominal, nominals, pending
from celery_zsched.planner.overlap import plan_alone

__all__ = [
    "Ahead",
    "Found",
    "Plan",
    "Reason",
    "Rules",
    "Send",
    "acknowledge",
    "ahead",
    "begin_anew",
    "due_of",
    "expires_of",
    "first",
    "has_run_out",
    "next_nominal",
    "nominals",
    "pending",
    "plan",
    "plan_alone",
    "release_buffered",
    "resume",
]
