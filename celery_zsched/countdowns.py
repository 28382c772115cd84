"""Countdowns as the broker wants them: so much after it has the message, by its own clock.

Celery makes an instant of a countdown by the publisher's clock, before any transport sees the message. So the part of
an app that makes messages is ours, where the app has none of its own; other brokers get the same messages as ever.
"""

from __future__ import annotations

import sys
from importlib import import_module

#: The ``amqp_cls`` of Celery's apps, and ours.
CELERYS, OURS = "celery.app.amqp:AMQP", "celery_zsched.amqp:AMQP"


def install() -> None:
    """See to the apps of this process that there are and that will be; without Celery there is nothing to do."""
    if "celery" not in sys.modules:
        return
    base = import_module("celery.app.base")  # which it loads late itself
    if base.Celery.amqp_cls == CELERYS:
        base.Celery.amqp_cls = OURS
    for app in import_module("celery._state")._get_active_apps():
        if app.amqp_cls == CELERYS:
            app.amqp_cls = OURS
            if "amqp" in app.__dict__:
                import_module("celery_zsched.amqp").take_over(app)
