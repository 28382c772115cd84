"""Lets tests import their own helpers and the benchmarks by name, behind whatever is installed."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
