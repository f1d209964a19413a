"""The prompts that come with ds4chat for measuring and checking, by kind of text."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of text."""

    name: str
    prompts: tuple[str, ...]
    """What the user says, one turn each."""


@cache
def workloads() -> tuple[Workload, ...]:
    """Every kind of text, in the order of the file: chat, code, list, rewrite (copying), story."""
    text = (files(__package__) / "workloads.toml").read_text(encoding="utf-8")
    return tuple(Workload(name, tuple(table["prompts"])) for name, table in tomllib.loads(text).items())
