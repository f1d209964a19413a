"""The help screen: what the words mean, the keys that work now, read from their bindings, and commands."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.cells import cell_len
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

from ds4chat.tui.glossary import LEGEND, find, introduction_lines, term_lines
from ds4chat.tui.kit.key_names import spelled
from ds4chat.tui.kit.lines import BLANK, Line, LinesView
from ds4chat.tui.kit.sheet import Sheet, StyleSheets

MOST_COLUMN = 18
"""Cells that the keys or the usage of a command may take at the left."""


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One action: where it works, the keys that call it now, what it does, and its name for ``[keys]``."""

    group: str
    keys: str
    does: str
    action_id: str


def collect_keys(app: App[Any]) -> list[KeyRow]:
    """The keys of the app, of its current screen and of every widget in it that takes the focus.

    A key that the user remapped shows as remapped. An action bound to several keys is one row. Bindings
    without a description or a name of their own are Textual's (cursor keys of a text field) and left out.
    """
    return [
        KeyRow(group, _shown(keys), binding.description, binding.id or "")
        for group, keys, binding in bound_keys(app)
    ]


def bound_keys(app: App[Any]) -> list[tuple[str, list[str], Binding]]:
    """The group, the keys as Textual names them, and the binding of every action of collect_keys."""
    screen = app.screen
    widgets = [widget for widget in screen.query("*").results(Widget) if widget.can_focus]
    owners: list[DOMNode] = [app, screen, *_with_parents(widgets, screen)]
    rows: dict[tuple[str, str], tuple[str, list[str], Binding]] = {}
    for owner in owners:
        group = _group(owner)
        for keys, binding in _bound(owner, app):
            rows.setdefault(
                (group, binding.id or binding.action), (group, list(dict.fromkeys(keys)), binding)
            )
    groups = list(dict.fromkeys(group for group, _, _ in rows.values()))
    return sorted(rows.values(), key=lambda row: (groups.index(row[0]), _rank(row[1])))


def own_keys(owner: DOMNode, app: App[Any]) -> list[tuple[str, Binding]]:
    """The keys in force, as shown, and the binding of each action that a node binds itself."""
    found = sorted(_bound(owner, app), key=lambda bound: _rank(bound[0]))
    return [(_shown(keys), binding) for keys, binding in found]


def _shown(keys: Iterable[str]) -> str:
    return " ".join(dict.fromkeys(map(spelled, keys)))


def _rank(keys: Sequence[str]) -> tuple[int, int]:
    """Where an action stands in its group: Esc, Enter, ctrl+c, the function keys by number, the others."""
    function = re.fullmatch(r"f(\d+)", keys[0])
    if function:
        return 1, int(function[1])
    first = ("escape", "enter", "ctrl+c")
    return (0, first.index(keys[0])) if keys[0] in first else (2, 0)


def _with_parents(widgets: Iterable[Widget], screen: Screen[Any]) -> list[DOMNode]:
    """Each widget and what contains it, one node a class, in the order of the screen."""
    found: dict[type, DOMNode] = {}
    for widget in widgets:
        for node in reversed(widget.ancestors_with_self):
            if isinstance(node, Widget) and not isinstance(node, Screen):
                found.setdefault(type(node), node)
    return list(found.values())


def _bound(owner: DOMNode, app: App[Any]) -> Iterable[tuple[list[str], Binding]]:
    """The owner's bindings under the user's keymap, the keys of one action together."""
    # Textual gives the keymap's outcome only for the focused widget; help lists the others too.
    bindings = owner._bindings.copy()
    if app._keymap:
        bindings.apply_keymap(app._keymap)
    grouped: dict[str, tuple[list[str], Binding]] = {}
    for key, binding in bindings:
        named = bool(binding.id) or (owner in (app, app.screen) and binding.show)
        if named and binding.description and not binding.system:
            grouped.setdefault(binding.id or binding.action, ([], binding))[0].append(key)
    return grouped.values()


def _group(owner: DOMNode) -> str:
    if isinstance(owner, App):
        return "Everywhere"
    given = getattr(owner, "HELP_GROUP", "")
    name = given or type(owner).__name__.removesuffix("Screen")
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()
    return words.capitalize()


def help_lines(
    rows: Sequence[KeyRow], commands: Sequence[tuple[str, str]], wanted: str, width: int = 100
) -> list[Line]:
    """The lines of the screen, ``width`` cells wide: those that contain ``wanted`` in any letter case."""
    needle = wanted.strip().lower()
    kept = [row for row in rows if needle in f"{row.group} {row.keys} {row.does} {row.action_id}".lower()]
    kept_commands = [c for c in commands if needle in f"{c[0]} {c[1]}".lower()]
    column = _column((row.keys for row in kept), width)
    lines: list[Line] = []
    for group in dict.fromkeys(row.group for row in kept):
        lines += [((group, "strong"),)]
        for row in kept:
            if row.group == group:
                lines += _entry(row.keys, column, row.does, row.action_id, width)
        lines.append(BLANK)
    if kept_commands:
        lines.append((("Slash commands", "strong"),))
        column = _column((usage for usage, _ in kept_commands), width)
        for usage, does in kept_commands:
            lines += _entry(usage, column, does, "", width)
    return lines or [((f"Nothing here mentions {wanted!r}.", "muted"),)]


def page_lines(
    rows: Sequence[KeyRow], commands: Sequence[tuple[str, str]], wanted: str, width: int
) -> list[Line]:
    """The whole screen: what MTP is or what the words mean, then keys and commands."""
    keys = help_lines(rows, commands, wanted, width)
    if not wanted.strip():
        return [*introduction_lines(width), *keys]
    terms = term_lines(find(wanted), width)
    if not terms:
        return keys
    nothing = len(keys) == 1 and keys == help_lines([], [], wanted, width)
    return [(("Words", "strong"),), *terms, *([] if nothing else [BLANK, *keys])]


def _column(texts: Iterable[str], width: int) -> int:
    """Width of the column that holds most of the texts; a few long ones stand on lines of their own."""
    widths = sorted(map(cell_len, texts))
    return max(8, min(MOST_COLUMN, width // 3, widths[-1])) if widths else 8


def _entry(left: str, column: int, does: str, action_id: str, width: int) -> list[Line]:
    """One row: the left column, and beside it the text and the name, on as many lines as they need."""
    room = max(20, width - column - 4)
    texts = [(line, "") for line in textwrap.wrap(does, room)] or [("", "")]
    if action_id and cell_len(texts[-1][0]) + 2 + len(action_id) > room:
        texts.append((action_id, "muted"))
        action_id = ""
    heads = [left]
    if cell_len(left) > column:
        texts.insert(0, ("", ""))
    heads += [""] * (len(texts) - 1)
    lines: list[Line] = []
    for head, (text, role) in zip(heads, texts, strict=True):
        pad = " " * max(0, column - cell_len(head))
        lines.append(((f"  {pad}", ""), (head, "mark"), (f"  {text}", role)))
    if action_id:
        lines[-1] += ((f"  {action_id}", "muted"),)
    return lines


class HelpLines(LinesView):
    """Lines in which the looks of tokens stand, too."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"lines--{name}" for name in LEGEND}


class HelpScreen(Sheet[None]):
    """Keys and commands, with a field that filters them."""

    CSS_PATH: ClassVar[StyleSheets] = ["../kit/sheet.tcss", "screen.tcss"]
    TITLE_TEXT = "Help"
    HINT = r"Type to filter · grey: its name for \[keys] in the settings · [b]Esc[/b] closes"

    def __init__(
        self, rows: Sequence[KeyRow], commands: Sequence[tuple[str, str]] = (), wanted: str = ""
    ) -> None:
        """``rows`` from collect_keys, taken before this screen is pushed; ``commands`` as (usage, help);
        ``wanted`` stands in the filter."""
        super().__init__()
        self._rows = list(rows)
        self._commands = list(commands)
        self._wanted = wanted
        self._view = HelpLines(id="help-lines")

    def compose_sheet(self) -> ComposeResult:
        yield Input(
            self._wanted,
            placeholder="filter words, keys and commands",
            id="help-filter",
            select_on_focus=False,
        )
        with VerticalScroll(can_focus=True):
            yield self._view

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    @on(Input.Changed)
    def filter_lines(self, event: Input.Changed) -> None:
        """Show what contains the text."""
        self._show_lines()

    def on_resize(self) -> None:
        """The lines fill the width."""
        self.call_after_refresh(self._show_lines)

    def _show_lines(self) -> None:
        width = self.query_one(VerticalScroll).scrollable_content_region.width or self.size.width - 4
        wanted = self.query_one(Input).value
        self._view.set_lines(page_lines(self._rows, self._commands, wanted, width))

    def on_key(self, event: Any) -> None:
        """The arrow and page keys scroll while the filter has the focus."""
        scroll = self.query_one(VerticalScroll)
        moves = {
            "down": scroll.scroll_down,
            "up": scroll.scroll_up,
            "pagedown": scroll.scroll_page_down,
            "pageup": scroll.scroll_page_up,
        }
        if event.key in moves:
            moves[event.key](animate=False)
            event.stop()
