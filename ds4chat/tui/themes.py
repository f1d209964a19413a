"""Theme files, shipped with ds4chat and in the user's folder, as checked Textual themes.

A theme is a TOML file whose stem is its name. ``[base]`` holds Textual's own colours, ``[colors]`` the
colours of tokens and charts, ``[styles]`` (optional) the text style of each origin, ``[variables]``
(optional) any further variable of Textual. A file with a problem gives no theme, and each problem is a
sentence.
"""

from __future__ import annotations

import difflib
import errno
import os
import threading
import tomllib
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from textual.app import App
from textual.color import Color, ColorParseError
from textual.theme import Theme

from ds4chat.files import read_regular, within
from ds4chat.text import one_line

DEFAULT_THEME = "ds4-dark"

BASE_COLORS = (
    "primary",
    "secondary",
    "accent",
    "warning",
    "error",
    "success",
    "foreground",
    "background",
    "surface",
    "panel",
)
OWN_COLORS = (
    "token-accepted",
    "token-corrected",
    "token-bonus",
    "token-plain",
    "token-unknown",
    "token-approximate",
    "thinking",
    "chart-draft",
    "chart-verify",
    "chart-accept",
    "chart-rollback",
    "chart-other",
    "bar-good",
    "bar-bad",
)
TOKEN_STYLES: dict[str, str] = {
    "token-accepted": "none",
    "token-corrected": "underline",
    "token-bonus": "bold",
    "token-plain": "italic",
    "token-unknown": "italic underline",
    "token-approximate": "bold underline",
}
"""Text style of each origin: what tells them apart where colour cannot. A theme may choose others, as long
as no two are the same. Each is the CSS variable ``$<name>-style``."""

STYLE_WORDS = frozenset({"none", "bold", "italic", "underline", "reverse", "strike", "dim"})
SECTIONS = ("dark", "ansi", "base", "colors", "styles", "variables")
MAX_BYTES = 256 << 10
"""A theme file has a few kilobytes; a file larger than this is not read."""


def load_themes(user_dir: Path | None) -> tuple[list[Theme], list[str]]:
    """Every theme, sorted by name, and one sentence for each problem found in any file.

    A file in ``user_dir`` replaces a shipped theme of the same name. A missing folder is not a problem.
    """
    found: dict[str, Theme] = {}
    problems: list[str] = []
    for file in [*_toml_files(shipped_folder()), *_user_files(user_dir, problems)]:
        theme, wrong = _read_file(file)
        problems += wrong
        if theme is not None:
            found[theme.name] = theme
    return [found[name] for name in sorted(found)], problems


def shipped_folder() -> Traversable:
    """The themes that come with ds4chat: package data in a wheel, the top-level folder in a checkout."""
    packaged = resources.files("ds4chat").joinpath("themes")
    if packaged.is_dir():
        return packaged
    return Path(__file__).resolve().parents[2] / "themes"


def parse_theme(name: str, text: str) -> tuple[Theme | None, list[str]]:
    """The theme in a TOML document, or None and a sentence for each thing wrong with it."""
    try:
        document = _Document(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        return None, [f"Theme {name}: this is not TOML: {error}."]
    base = document.colors("base", BASE_COLORS, optional=("boost",))
    needed = tuple(name for name in OWN_COLORS if name != "token-unknown")
    own = document.colors("colors", needed, optional=("token-unknown",))
    if "thinking" in own:
        own.setdefault("token-unknown", own["thinking"])
    styles = {f"{key}-style": value for key, value in document.styles().items()}
    variables = {**document.variables(), **own, **styles}
    if document.problems:
        return None, [f"Theme {name}: {problem}" for problem in document.problems]
    return Theme(name=name, dark=document.dark, ansi=document.ansi, variables=variables, **base), []


def unknown_theme(name: str, themes: Iterable[str]) -> str:
    """The sentence for an unknown theme name, with the nearest known names."""
    known = sorted(themes)
    near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"The themes are {', '.join(known)}."
    return f"There is no theme {name!r}. {hint}"


def variable_defaults(dark: bool = True) -> dict[str, str]:
    """Values of ds4chat's own variables for a Textual theme that does not define them.

    For ``App.get_theme_variable_defaults``: without them the style sheets would not parse under Textual's
    built-in themes.
    """
    theme, _ = _read_file(shipped_folder() / f"{DEFAULT_THEME if dark else 'ds4-light'}.toml")
    if theme is None:
        raise RuntimeError("The default theme is missing from this installation. Install ds4chat again.")
    return {key: value for key, value in theme.variables.items() if key in _own_variables()}


class ThemeFolder:
    """Registers all themes with an app and reloads the user's files when they change."""

    POLL_SECONDS = 1.0
    LOAD_SECONDS = 2.0
    """How long the start waits for the user's folder."""

    def __init__(self, app: App[Any], user_dir: Path, report: Callable[[list[str]], None]) -> None:
        """``report`` is called with the problems whenever files were read and there are some."""
        self._app = app
        self._user_dir = user_dir
        self._report = report
        self._seen: dict[str, tuple[int, int]] = {}
        self._left = threading.Event()
        self.themes: list[Theme] = []

    def load(self) -> None:
        """Read every file, register its theme, and redraw if it is the current one."""
        try:
            self._seen, (self.themes, problems) = within(
                self.LOAD_SECONDS, lambda: (_stamps(self._user_dir), load_themes(self._user_dir))
            )
        except TimeoutError as error:
            self.themes, problems = load_themes(None)
            problems.append(f"The theme folder {self._user_dir} cannot be read: {error.strerror}.")
        before = self._app.get_theme(self._app.theme)
        for theme in self.themes:
            self._app.register_theme(theme)
        if self._app.get_theme(self._app.theme) != before:
            self._app.mutate_reactive(App.theme)
        if problems:
            self._report(problems)

    def follow(self) -> None:
        """Look for changed files every POLL_SECONDS, with a few stat calls while none changed. A thread does
        so, because a folder that does not answer must not hold up a key."""
        threading.Thread(target=self._look_again, name="themes", daemon=True).start()

    def leave(self) -> None:
        """Look no more."""
        self._left.set()

    def _look_again(self) -> None:
        with suppress(RuntimeError, CancelledError):  # the app is leaving
            while not self._left.wait(self.POLL_SECONDS):
                if self.changed():
                    self._app.call_from_thread(self.load)

    def changed(self) -> bool:
        """A file of the user's folder came, went or changed since it was loaded."""
        return _stamps(self._user_dir) != self._seen


# ---------------------------------------------------------------------------------------- files


def _toml_files(folder: Traversable) -> list[Traversable]:
    if not folder.is_dir():
        return []
    return sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)


def _user_files(user_dir: Path | None, problems: list[str]) -> list[Traversable]:
    if user_dir is None:
        return []
    try:
        return _toml_files(user_dir)
    except OSError as error:
        problems.append(f"The theme folder {user_dir} cannot be read: {error.strerror}.")
        return []


def _read_file(file: Traversable) -> tuple[Theme | None, list[str]]:
    name = one_line(file.name.removesuffix(".toml"))
    try:
        data = read_regular(file, MAX_BYTES) if isinstance(file, Path) else file.read_bytes()
    except OSError as error:
        if error.errno == errno.EFBIG:
            return None, [f"Theme {name}: {file} has more than {MAX_BYTES >> 10} KiB, so it is no theme."]
        return None, [f"Theme {name}: {file} cannot be read: {error.strerror}."]
    try:
        return parse_theme(name, data.decode())
    except UnicodeDecodeError as error:
        return None, [f"Theme {name}: byte {error.start} of {file} is not UTF-8."]


def _stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Modification time and size of each theme file; empty where the folder cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return {
                entry.name: (entry.stat().st_mtime_ns, entry.stat().st_size)
                for entry in entries
                if entry.name.endswith(".toml")
            }
    except OSError:
        return {}


# ---------------------------------------------------------------------------------------- checks


class _Document:
    """A theme's TOML document. What is wrong with it is added to ``problems``."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self.problems: list[str] = []
        self._refuse_unknown(document, SECTIONS, "key")
        self.ansi = self._flag("ansi", False)
        self.dark = self._flag("dark", True)

    def colors(self, section: str, needed: tuple[str, ...], optional: tuple[str, ...]) -> dict[str, Any]:
        """The colours of a section."""
        if section not in self._document:
            self.problems.append(f"the section [{section}] is missing.")
            return {}
        table = self._table(section)
        self._refuse_unknown(table, needed + optional, f"colour in [{section}]:")
        if missing := [key for key in needed if key not in table]:
            self.problems.append(f"[{section}] lacks {', '.join(missing)}.")
        return {
            key: value
            for key, value in table.items()
            if key in needed + optional and self._is_color(f"{section}.{key}", value, self.ansi)
        }

    def styles(self) -> dict[str, str]:
        """The text style of each origin."""
        table = self._table("styles")
        self._refuse_unknown(table, TOKEN_STYLES, "style in [styles]:")
        styles = {**TOKEN_STYLES, **{k: v for k, v in table.items() if k in TOKEN_STYLES}}
        looks: dict[frozenset[str], str] = {}
        for key, value in styles.items():
            look = frozenset(value.split()) if isinstance(value, str) else frozenset()
            if not look or not look <= STYLE_WORDS:
                words = ", ".join(sorted(STYLE_WORDS))
                self.problems.append(f"styles.{key} is {value!r}; it takes words of {words}.")
            elif look in looks:
                self.problems.append(
                    f"styles.{key} is {value!r}, the same as styles.{looks[look]}: they must differ."
                )
            looks.setdefault(look, key)
        return styles

    def variables(self) -> dict[str, str]:
        """Further variables of Textual."""
        table = self._table("variables")
        self._refuse_unknown(table, _textual_variables(), "variable in [variables]:")
        for key, value in table.items():
            if not isinstance(value, str):
                self.problems.append(f"variables.{key} is {value!r}; it takes a string.")
            elif not key.endswith("-style"):
                self._is_color(f"variables.{key}", value.split(" ")[0], ansi=True)
        return table

    def _refuse_unknown(self, table: Iterable[str], known: Iterable[str], what: str) -> None:
        names = list(known)
        for key in table:
            if key not in names:
                near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
                hint = f"; did you mean {near[0]!r}?" if near else "."
                self.problems.append(f"unknown {what} {key!r}{hint}")

    def _table(self, section: str) -> dict[str, Any]:
        table = self._document.get(section, {})
        if isinstance(table, dict):
            return table
        self.problems.append(f"{section} must be a table: write [{section}] on a line of its own.")
        return {}

    def _flag(self, key: str, default: bool) -> bool:
        value = self._document.get(key, default)
        if isinstance(value, bool):
            return value
        self.problems.append(f"{key} is {value!r}; it takes true or false.")
        return default

    def _is_color(self, key: str, value: object, ansi: bool) -> bool:
        try:
            color = Color.parse(value) if isinstance(value, str) else None
        except ColorParseError:
            color = None
        if color is None:
            self.problems.append(f"{key} is {value!r}, which is not a colour; write one like '#8bd49c'.")
        elif color.ansi is not None and not ansi:
            self.problems.append(
                f"{key} is {value!r}, a colour of the terminal's palette; that needs ansi = true."
            )
        return color is not None and (color.ansi is None or ansi)


@cache
def _textual_variables() -> tuple[str, ...]:
    return tuple(Theme(name="any", primary="#000000").to_color_system().generate())


@cache
def _own_variables() -> frozenset[str]:
    return frozenset(OWN_COLORS) | {f"{key}-style" for key in TOKEN_STYLES}
