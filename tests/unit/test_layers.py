"""The import table as a test: data flows one way, so a module imports only from rows above its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import celery_zsched

PACKAGE = Path(celery_zsched.__file__).parent

#: The rows, top first, by module or by subpackage (whose own modules may import one another). Rows are joined by what
#: they are for: values without I/O, Redis, the timeline, the verbs, the edges.
ROWS: tuple[tuple[str, ...], ...] = (
    ("errors", "guesses", "ours", "types"),
    ("options",),
    ("server_options",),
    ("urls",),
    ("transport_settings",),
    ("settings",),
    ("triggers",),
    ("entry", "message"),
    ("windows",),
    ("planner",),
    ("keys",),
    ("translation", "embedded"),
    ("supervisor", "links"),
    ("connection",),
    ("cautions",),
    ("scripts",),
    ("bell", "signals", "wires"),
    ("timeline", "stored"),
    ("lookout", "placing"),
    ("queues", "schedules"),
    ("runs", "blackout_store", "outlet"),
    ("deciding", "isolation"),
    ("inheriting",),
    ("upkeep",),
    ("roll",),
    ("amqp", "apps", "confirms", "countdowns", "engine", "events", "notices"),
    ("embedding", "publishing", "run_leases"),
    ("context", "reporting"),
    ("operations",),
    ("control",),
    ("remote",),
    ("api", "blackouts", "transport", "beat", "testing"),
    ("cli", "redbeat"),
    ("__init__",),
)
ROW = {name: row for row, names in enumerate(ROWS) for name in names}

#: Rows that hold values only and may not reach for Redis or Celery.
VALUES = frozenset(name for names in ROWS[: ROW["keys"]] for name in names)

#: What the row of values may not import: anything that talks to something.
IO_MODULES = frozenset({"asyncio", "kombu", "redis", "socket", "subprocess", "threading", "valkey"})

#: Parts of those that only turn values into values.
PURE_MODULES = frozenset({"kombu.exceptions", "kombu.serialization"})

SOURCES = sorted(PACKAGE.rglob("*.py"))


def unit_of(path: Path) -> str:
    """Return the name in ROWS that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def module_of(path: Path) -> str:
    """Return the dotted name of a file's module."""
    parts = ["celery_zsched", *path.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


#: Every module of the package, by its dotted name.
MODULES = {module_of(path) for path in SOURCES}


def imports_of(path: Path) -> Iterator[str]:
    """Yield the dotted names of all modules that a file imports, wherever in it, but for type checkers only."""
    package = ["celery_zsched", *path.relative_to(PACKAGE).parent.parts]
    pending: list[ast.AST] = [ast.parse(path.read_text(), str(path))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            # "from celery_zsched import keys" imports a module, where "from celery_zsched.keys import X" names it.
            names = [f"{base}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES or base == "celery_zsched" else base for name in names)
        pending.extend(ast.iter_child_nodes(node))


def test_every_module_has_a_row() -> None:
    """A new module is given its place in the table before it is used."""
    units = {unit_of(path) for path in SOURCES}
    assert units - set(ROW) == set()


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_rows_above_its_own(path: Path) -> None:
    """No module knows of what is built on it."""
    unit = unit_of(path)
    ours = {name.split(".")[1] for name in imports_of(path) if name.startswith("celery_zsched.")}
    # The face itself holds nothing but the version for those below it.
    used = {name for name in ours if name in ROW} - {unit}
    assert {name for name in used if ROW[name] >= ROW[unit]} == set()
    assert {name for name in ours if name not in ROW} <= {"__version__"}


def test_no_modules_import_each_other() -> None:
    """Inside a subpackage too, what is imported is finished before what imports it."""
    graph = {module_of(path): MODULES.intersection(imports_of(path)) - {module_of(path)} for path in SOURCES}
    assert list(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if unit_of(path) in VALUES], ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_values_reach_for_nothing_outside(path: Path) -> None:
    """Decisions take their inputs as arguments: no Redis, no sockets, no processes."""
    assert {name.partition(".")[0] for name in set(imports_of(path)) - PURE_MODULES} & IO_MODULES == set()
