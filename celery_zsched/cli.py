"""``celery zsched …``, found by Celery through its entry point ``celery.commands``.

Every ``celery`` command imports this module, which is also how the remote-control commands and the broker's URL schemes
become known without an import in the user's app. It imports nothing heavy that Celery has not imported by then.
"""

from __future__ import annotations

import click

from celery_zsched import __version__, control

__all__ = ["control", "zsched"]


@click.group(help=f"Periodic, delayed and waiting tasks on Redis or Valkey (celery-zsched {__version__}).")
def zsched() -> None:
    """Hold the commands."""
