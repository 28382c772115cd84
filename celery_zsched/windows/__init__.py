"""Blackouts: named windows in which no entry that names them is sent. Values without I/O."""

from celery_zsched.windows.blackout import Blackout, Openings
from celery_zsched.windows.calendar import read_calendar
from celery_zsched.windows.window import Repeat, Span, Window, window_of

__all__ = ["Blackout", "Openings", "Repeat", "Span", "Window", "read_calendar", "window_of"]
