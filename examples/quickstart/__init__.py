"""The smallest app: a worker with its scheduler, on a server that comes with the package."""
