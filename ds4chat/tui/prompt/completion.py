"""What may complete the text before the cursor: commands, their arguments, and paths."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ds4chat.files import user_path, within
from ds4chat.settings.schema import OPTIONS
from ds4chat.tui.command_table import BY_NAME, COMMANDS, Completes

MOST = 200
"""Suggestions offered; the rest comes with more letters."""
BEGUN_MENTION = re.compile(r'(?<!\S)@(?:"(?P<quoted>[^"\n]*)|(?P<plain>[^\s"]*))$')
MOST_ENTRIES = 5000
"""Entries of a folder that are looked at."""
PATIENCE_SECONDS = 0.5
"""How long a key may wait for a folder."""
_SILENT: set[Path] = set()
"""Folders that have not answered yet: until they do, no other key waits for them."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One way to complete the text."""

    label: str
    help: str
    insert: str
    """Replaces the text from ``start`` to the cursor."""
    start: int
    """Index in the text before the cursor."""
    final: bool = True
    """It is complete: nothing can follow, as inside a folder."""


def suggest(before: str, themes: Iterable[str] = ()) -> list[Suggestion]:
    """Suggestions for the text from the prompt's beginning to the cursor. ``themes``: what /theme takes."""
    if before.startswith("/") and "\n" not in before:
        head, blank, argument = before[1:].partition(" ")
        if not blank:
            return _commands(head.lower())
        command = BY_NAME.get(head.lower())
        if command is None:
            return []
        return _argument(command.completes, argument, len(before) - len(argument), themes)
    mention = BEGUN_MENTION.search(before)
    return _mentions(mention) if mention is not None else []


def _mentions(begun: re.Match[str]) -> list[Suggestion]:
    """Files for a mention; a path with blanks is quoted, and the quotes are closed after a file."""
    quoted, plain = begun["quoted"], begun["plain"]
    found = _paths(quoted if quoted is not None else plain, begun.start() + 1)
    return [
        replace(s, insert=f'"{s.insert}' + ('"' if s.final else ""))
        if quoted is not None or any(map(str.isspace, s.insert))
        else s
        for s in found
    ]


def _commands(typed: str) -> list[Suggestion]:
    """Commands with these letters in a name: first the one of that name, then those that begin with it."""
    ranked: list[tuple[tuple[bool, bool], Suggestion]] = []
    for command in COMMANDS:
        names = [name for name in (command.name, *command.aliases) if typed in name]
        if names:
            rank = min((name != typed, not name.startswith(typed)) for name in names)
            insert = f"/{command.name}" + (" " if command.argument else "")
            suggestion = Suggestion(command.usage, command.help, insert, 0, not command.needs_argument)
            ranked.append((rank, suggestion))
    return [suggestion for _, suggestion in sorted(ranked, key=lambda pair: pair[0])]


def _argument(completes: Completes, typed: str, start: int, themes: Iterable[str]) -> list[Suggestion]:
    words: dict[str, str] = {}
    if completes == "depth":
        words = {"auto": "what pays best", **{str(n): "" for n in (1, 2, 3, 4, 6, 8, 16)}}
    elif completes == "format":
        words = {"tokens": "coloured by origin", "markdown": "rendered"}
    elif completes == "mtp":
        words = {
            "on": "resume",
            "off": "pause: draft nothing",
            "embedded": "the NextN block inside the target",
            "lookup": "draft from the conversation itself",
            "none": "load without a drafter",
        }
    elif completes == "theme":
        words = dict.fromkeys(themes, "")
    elif completes == "option":
        words = {o.key: o.help for o in OPTIONS if o.live and o.kind != "table"}
    found = [Suggestion(word, text, word, start) for word, text in words.items() if word.startswith(typed)]
    if [s.label for s in found] == [typed]:
        found = []
    if completes in ("file", "model") or (completes == "mtp" and ("/" in typed or "." in typed)):
        found += _paths(typed, start, "" if completes == "file" else ".gguf")
    return found


def _paths(typed: str, start: int, ending: str = "") -> list[Suggestion]:
    """Files with this ending, and folders, in the folder that the path names. A folder ends with a slash,
    after which completion continues."""
    folder, _, leaf = typed.rpartition("/")
    shown = f"{folder}/" if folder or typed.startswith("/") else ""
    place = user_path(shown or ".")
    if place in _SILENT:
        return []

    def look() -> list[Suggestion]:
        _SILENT.add(place)
        try:
            return _entries(place, shown, leaf, start, ending)
        finally:
            _SILENT.discard(place)

    try:
        found = within(PATIENCE_SECONDS, look)
    except OSError:
        return []
    return sorted(found, key=lambda s: (s.final, s.label.lower()))


def _entries(place: Path, shown: str, leaf: str, start: int, ending: str) -> list[Suggestion]:
    """Entries of a folder whose names begin with ``leaf``. Raises OSError."""
    found: list[Suggestion] = []
    with os.scandir(place) as entries:
        for count, entry in enumerate(entries):
            if count >= MOST_ENTRIES or len(found) >= MOST:
                break
            name = entry.name
            hidden = name.startswith(".") and not leaf.startswith(".")
            if hidden or not name.lower().startswith(leaf.lower()) or not name.isprintable():
                continue
            is_folder = entry.is_dir()
            if not is_folder and not name.lower().endswith(ending):
                continue
            insert = f"{shown}{name}" + ("/" if is_folder else "")
            found.append(Suggestion(name + ("/" if is_folder else ""), "", insert, start, not is_folder))
    return found
