"""The scripts' headers and texts."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from celery_zsched import scripts
from celery_zsched.keys import TimelineKeys

FOLDER = resources.files("celery_zsched") / "lua"
NAMES = sorted(file.name[:-4] for file in FOLDER.iterdir() if file.name.endswith(".lua"))
INCLUDES = sorted(file.name[:-4] for file in (FOLDER / "include").iterdir() if file.name.endswith(".lua"))
_FIELDS = ("KEYS", "ARGV", "RETURNS", "RULES")


def text_of(name: str) -> str:
    """Return the text of a script's file."""
    return (FOLDER / f"{name}.lua").read_text("utf-8")


def header_of(text: str) -> list[str]:
    """Return the comment lines at the beginning."""
    lines = text.split("\n")
    return lines[: next(number for number, line in enumerate(lines) if not line.startswith("--"))]


@pytest.mark.parametrize("name", NAMES)
def test_header_is_complete(name: str) -> None:
    """A script's header begins with its name and says KEYS, ARGV, what it returns and which rules it keeps."""
    header = header_of(text_of(name))
    assert header[0].startswith(f"-- {name}: ")
    for field in _FIELDS:
        assert [line for line in header if line.startswith(f"-- {field}: ")], field
    rules = next(line for line in header if line.startswith("-- RULES: "))
    assert {int(rule) for rule in re.findall(r"\b(\d)\b", rules)} <= set(range(1, 9))


@pytest.mark.parametrize("name", NAMES)
def test_keys_are_bound_in_the_headers_order(name: str) -> None:
    """The names in the header are the names in the script, KEYS[1] first, and each is a key of the data model."""
    text = text_of(name)
    fixed = [key for key in scripts.load(name).keys if key != "timelines..."]
    bound = re.search(r"^local ([a-z_, ]+) =\s+(KEYS\[1\][^\n]*(?:\n +KEYS[^\n]*)*)$", text, re.MULTILINE)
    assert bound, "no line binds the keys"
    assert [part.strip() for part in bound[1].split(",")] == fixed
    assert re.findall(r"KEYS\[(\d+)\]", bound[2]) == [str(number + 1) for number in range(len(fixed))]
    rest = re.search(r"^local timelines = \{unpack\(KEYS, (\d+)\)\}$", text, re.MULTILINE)
    assert ("timelines..." in scripts.load(name).keys) == bool(rest)
    assert rest is None or int(rest[1]) == len(fixed) + 1
    keys = TimelineKeys("q", levels=2)
    named = scripts.load(name).key_names(keys, keys.own("c"))
    assert set(named) <= {*keys.all(), keys.own("c")}
    assert len(named) == len(set(named))


@pytest.mark.parametrize("name", NAMES)
def test_no_key_name_is_built(name: str) -> None:
    """Each command's key is a variable that holds one of KEYS, never a text put together."""
    text = scripts.load(name).plain.text
    code = "\n".join(line.split("--")[0] for line in text.split("\n"))
    first = re.findall(r"\bcall\('([A-Z]+)'(?:, ([^,()]+(?:\([^)]*\))?))?", code)
    assert first
    known = {
        *scripts.load(name).keys,
        "key",
        "hash",
        "timelines[1]",
        "timelines[level]",
        "timelines[level + 1]",
        "waits_at(level)",
    }
    for command, key in first:
        assert command in ("TIME", "PUBLISH") or key in known, f"{command} {key}"
    assert ".." not in "".join(re.findall(r"KEYS[^\n]*", code))
    assert not re.search(r"redis\.call\('(?:KEYS|SCAN|RANDOMKEY|SELECT)'", code)


@pytest.mark.parametrize("name", NAMES)
def test_includes_are_there_and_used(name: str) -> None:
    """An include line names files that exist, is replaced, and nothing is included twice."""
    asked = [part for line in re.findall(r"^-- @include (.+)$", text_of(name), re.MULTILINE) for part in line.split()]
    assert set(asked) <= set(INCLUDES)
    assert len(asked) == len(set(asked))
    script = scripts.load(name)
    assert "@include" not in script.plain.text
    assert "@flags" not in script.plain.text
    assert script.flagged.text.removeprefix("#!lua flags=allow-oom\n") == script.plain.text


@pytest.mark.parametrize("name", INCLUDES)
def test_no_include_lies_idle(name: str) -> None:
    """Every include is used by some script and says at its top what it is for."""
    assert any(re.search(rf"^-- @include .*\b{name}\b", text_of(script), re.MULTILINE) for script in NAMES)
    assert (FOLDER / "include" / f"{name}.lua").read_text("utf-8").startswith(f"-- {name}: ")


@pytest.mark.parametrize("name", NAMES)
def test_every_script_is_called(name: str) -> None:
    """Every script is named by some module of the package."""
    package = resources.files("celery_zsched")
    modules = [package]
    texts = []
    while modules:
        for file in modules.pop().iterdir():
            if file.is_dir() and file.name not in ("lua", "__pycache__"):
                modules.append(file)
            elif file.name.endswith(".py"):
                texts.append(file.read_text("utf-8"))
    assert any(f'"{name}"' in text for text in texts)


def test_only_putting_is_refused_by_a_full_server() -> None:
    """Every script that writes may run at maxmemory, but the one that brings something new."""
    reading = {"counts", "locate", "overdue", "upcoming"}
    allowed = {name for name in NAMES if scripts.load(name).flagged.text.startswith("#!lua flags=allow-oom\n")}
    assert set(NAMES) - allowed - reading == {"publish", "put"}


@pytest.mark.parametrize("name", NAMES)
def test_every_loop_is_over_what_was_given_or_found(name: str) -> None:
    """No script loops without a bound: a while must be over ranks of one set or free names."""
    code = scripts.load(name).plain.text
    for condition in re.findall(r"^\s*while (.+) do$", code, re.MULTILINE):
        assert condition in ("low < high", "call('HEXISTS', bodies, found) == 1"), condition
    assert "repeat" not in code
