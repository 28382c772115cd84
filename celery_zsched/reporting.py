"""Workers report of runs that may not overlap wherever this package is imported, whatever the broker is.

Celery's signals must be listened to for that (:mod:`celery_zsched.run_leases`). An import of this package alone loads
no Celery; where Celery comes only later, its part that makes a process a worker brings the listeners along.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

#: What every worker imports, and little else does.
WORKER = "celery.worker"

_LISTENERS = "celery_zsched.run_leases"


class Usher(MetaPathFinder):
    """Finds no module, but sees the worker come."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return None; before a worker's first module is loaded, what it needs is."""
        if fullname == WORKER:
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            import_module(_LISTENERS)
        return None


def install() -> None:
    """Let this process report of its runs once it is a worker."""
    if "celery" in sys.modules:
        import_module(_LISTENERS)
    elif not any(isinstance(finder, Usher) for finder in sys.meta_path):
        sys.meta_path.insert(0, Usher())
