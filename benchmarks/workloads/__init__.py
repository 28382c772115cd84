"""One module a workload: ``measure(**parameters)`` returns its figures by name."""
