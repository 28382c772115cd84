"""The Lua scripts: read from the package's data, checked against their headers, called by SHA.

A script's header names its keys (fields of :class:`~celery_zsched.keys.TimelineKeys`), so callers give a timeline's
keys and never a list to get wrong. ``-- @include a b`` is replaced by ``lua/include/a.lua`` and so on;
``-- @flags x`` becomes ``#!lua flags=x`` on servers that know script flags (Redis 7, Valkey) and is left out on 6.2.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoScriptError, ResponseError

from celery_zsched.keys import TimelineKeys

if TYPE_CHECKING:
    from celery_zsched.connection import Server

_INCLUDE = re.compile(r"^-- @include ([a-z ]+)$", re.MULTILINE)
_FLAGS = re.compile(r"^-- @flags ([a-z,-]+)\n", re.MULTILINE)
_KEYS = re.compile(r"^-- KEYS: ([a-z .]+)$", re.MULTILINE)

#: An argument as redis-py sends it.
Argument = str | bytes | int


@dataclass(frozen=True, slots=True)
class Source:
    """One text of a script and its SHA-1."""

    text: str
    sha: str

    @classmethod
    def of(cls, text: str) -> Source:
        """Return the source of a text."""
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


@dataclass(frozen=True, slots=True)
class Script:
    """One operation: its key names in order, its text with and without script flags."""

    name: str
    keys: tuple[str, ...]
    plain: Source
    flagged: Source

    @property
    def doing(self) -> str:
        """What fails when the script does, as errors begin."""
        return f"the script {self.name}"

    def key_names(self, of: TimelineKeys, own: str = "") -> list[str]:
        """Return the KEYS of a call for one timeline; ``own`` is the caller's own bell, where the script wants it."""
        names: list[str] = []
        for key in self.keys:
            if key == "timelines...":
                names += of.timelines
            elif key == "own":
                names.append(own)
            else:
                names.append(getattr(of, key))
        return names


@cache
def load(name: str) -> Script:
    """Return the script ``lua/<name>.lua`` with its includes in place."""
    folder = resources.files("celery_zsched") / "lua"
    text = (folder / f"{name}.lua").read_text(encoding="utf-8")
    keys = _KEYS.search(text)
    if keys is None:
        raise ValueError(f"lua/{name}.lua has no '-- KEYS:' line in its header")
    flags = _FLAGS.search(text)
    text = _FLAGS.sub("", text)

    def included(match: re.Match[str]) -> str:
        return "\n".join((folder / "include" / f"{part}.lua").read_text("utf-8") for part in match[1].split())

    text = _INCLUDE.sub(included, text)
    flagged = f"#!lua flags={flags[1]}\n{text}" if flags else text
    return Script(name, tuple(keys[1].split()), Source.of(text), Source.of(flagged))


def call(server: Server, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Any:
    """Run a script and return its answer.

    A server that does not have it (restart, failover, ``SCRIPT FLUSH``) gets its text with the call. Server errors come
    translated (:mod:`celery_zsched.errors`).
    """
    with server.translated(script.doing):
        source = script.flagged if server.script_flags else script.plain
        try:
            return _client(server).execute_command("EVALSHA", source.sha, len(keys), *keys, *args)
        except NoScriptError:
            return _send_text(server, script, keys, args)


def _client(server: Server) -> Any:
    return server.client


def _send_text(server: Server, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Any:
    if server.script_flags:
        try:
            return _client(server).execute_command("EVAL", script.flagged.text, len(keys), *keys, *args)
        except ResponseError as exc:
            if "unexpected symbol near '#'" not in str(exc):
                raise
            server.script_flags = False  # before Redis 7
    return _client(server).execute_command("EVAL", script.plain.text, len(keys), *keys, *args)
