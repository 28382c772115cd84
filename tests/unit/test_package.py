"""The package as it is installed: what the wheel holds, and what other programs find in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path

import pytest

import celery_zsched

ROOT = Path(__file__).parents[2]

#: The checkout. tox runs a copy of the tests beside which there is no package, so that the installed wheel is tested.
SOURCE = Path(os.environ.get("ZSCHED_SOURCE", ROOT))


def test_the_version_stands_in_one_place() -> None:
    """The metadata of the distribution take the version from the package."""
    assert metadata.version("celery-zsched") == celery_zsched.__version__
    written = [
        name
        for name in ("setup.cfg", "pyproject.toml", "tox.ini", "Makefile")
        if re.search(rf"(?<![\d.]){re.escape(celery_zsched.__version__)}(?![\d.])", (SOURCE / name).read_text())
    ]
    assert written == []


def test_type_checkers_find_the_types() -> None:
    """The marker of PEP 561 is part of the package."""
    assert resources.files("celery_zsched").joinpath("py.typed").is_file()


def test_the_wheel_is_what_is_tested() -> None:
    """Under tox the package comes out of the built wheel, never out of the checkout."""
    installed = not Path(celery_zsched.__file__).is_relative_to(SOURCE / "celery_zsched")
    assert installed == ("ZSCHED_SOURCE" in os.environ)


def test_scripts_are_part_of_the_package() -> None:
    """Every Lua script of the source tree is found as package data."""
    there = SOURCE / "celery_zsched" / "lua"
    wanted = {str(path.relative_to(there)) for path in there.rglob("*.lua")}
    lua = resources.files("celery_zsched").joinpath("lua")
    assert wanted
    assert {name for name in wanted if lua.joinpath(*Path(name).parts).is_file()} == wanted


@pytest.mark.parametrize(
    ("group", "name"), [("celery.commands", "zsched"), ("celery.beat_schedulers", "zsched")], ids=lambda part: part
)
def test_entry_points_load(group: str, name: str) -> None:
    """What Celery looks up by name can be imported."""
    (found,) = (
        point for point in metadata.entry_points(group=group, name=name) if point.value.startswith("celery_zsched")
    )
    assert callable(found.load())


@pytest.mark.parametrize("name", celery_zsched.__all__)
def test_public_names_are_there(name: str) -> None:
    """Every public name is found where the face says it is."""
    assert getattr(celery_zsched, name) is not None
    assert name in dir(celery_zsched)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """The lazy face behaves like any other module."""
    with pytest.raises(AttributeError, match="has no attribute 'Skeduler'"):
        celery_zsched.Skeduler  # noqa: B018


def test_importing_the_package_is_cheap() -> None:
    """The face imports neither Celery nor Redis, since every ``celery`` command passes through it."""
    code = "import sys, celery_zsched; print(sorted({'celery', 'redis', 'kombu.transport.redis'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
