"""A tour of every command, against a server that comes with the package: ``examples/tour/run.sh``."""
