"""Figures that anyone can measure again: ``python -m benchmarks.compare NAME``, ``python -m benchmarks.timeline``."""
