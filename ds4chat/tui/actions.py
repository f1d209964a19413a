"""The names of actions, which ``[keys]`` in the settings file binds to keys."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Iterable

from textual.binding import Binding

import ds4chat.tui


def action_names() -> set[str]:
    """The names of all actions. Imports every screen."""
    names: set[str] = set()
    for module in pkgutil.walk_packages(ds4chat.tui.__path__, "ds4chat.tui."):
        for owner in vars(importlib.import_module(module.name)).values():
            if isinstance(owner, type):
                bindings = [b for base in owner.__mro__ for b in vars(base).get("BINDINGS", ())]
                names.update(b.id for b in bindings if isinstance(b, Binding) and b.id)
    return names


def unknown_actions(names: Iterable[str]) -> list[str]:
    """A sentence for each of the names in ``[keys]`` that is no action."""
    names = list(names)
    known = action_names() if names else set()
    problems = []
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"Did you mean {near[0]}?" if near else "F1 in the chat lists them."
            problems.append(f"[keys] names an unknown action, {name}. {hint}")
    return problems
