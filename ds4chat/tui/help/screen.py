"""The help screen: terms, the keys as they are bound now, and slash commands."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.cells import cell_len
from textual import events, on
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
"""Most cells of the left column, which has the keys or the usage of a command."""


@dataclass(frozen=True, slots=True)
class KeyRow:
    """An action and the keys that call it now."""

    group: str
    """Where it works."""
    keys: tuple[str, ...]
    """As Textual names them."""
    binding: Binding

    @property
    def shown(self) -> str:
        """The keys as they are printed on a keyboard."""
        return " ".join(dict.fromkeys(map(spelled, self.keys)))


def collect_keys(app: App[Any]) -> list[KeyRow]:
    """The keys of the app, of its current screen and of every widget in it that takes the focus.

    A key that the user remapped shows as remapped. An action with several keys is one row. Bindings without a
    description or an id are Textual's (cursor keys of a text field) and left out.
    """
    screen = app.screen
    widgets = [widget for widget in screen.query("*").results(Widget) if widget.can_focus]
    rows: dict[tuple[str, str], KeyRow] = {}
    for owner in (app, screen, *_with_parents(widgets, screen)):
        for row in own_keys(owner, app):
            rows.setdefault((row.group, row.binding.id or row.binding.action), row)
    groups = list(dict.fromkeys(row.group for row in rows.values()))
    return sorted(rows.values(), key=lambda row: (groups.index(row.group), _rank(row.keys)))


def own_keys(owner: DOMNode, app: App[Any]) -> list[KeyRow]:
    """The actions that a node binds itself, with their keys under the user's keymap."""
    # Textual applies the keymap only for the focused widget; help lists the others too.
    bindings = owner._bindings.copy()
    if app._keymap:
        bindings.apply_keymap(app._keymap)
    grouped: dict[str, tuple[list[str], Binding]] = {}
    for key, binding in bindings:
        named = bool(binding.id) or (owner in (app, app.screen) and binding.show)
        if named and binding.description and not binding.system:
            grouped.setdefault(binding.id or binding.action, ([], binding))[0].append(key)
    group = _group(owner)
    rows = [KeyRow(group, tuple(keys), binding) for keys, binding in grouped.values()]
    return sorted(rows, key=lambda row: _rank(row.keys))


def _rank(keys: Sequence[str]) -> tuple[int, int]:
    """The order of actions: Esc, Enter, ctrl+c, the function keys by number, the others."""
    function = re.fullmatch(r"f(\d+)", keys[0])
    if function:
        return 1, int(function[1])
    first = ("escape", "enter", "ctrl+c")
    return (0, first.index(keys[0])) if keys[0] in first else (2, 0)


def _with_parents(widgets: Iterable[Widget], screen: Screen[Any]) -> list[DOMNode]:
    """Each widget and its ancestors, one node per class, in the order of the screen."""
    found: dict[type, DOMNode] = {}
    for widget in widgets:
        for node in reversed(widget.ancestors_with_self):
            if isinstance(node, Widget) and not isinstance(node, Screen):
                found.setdefault(type(node), node)
    return list(found.values())


def _group(owner: DOMNode) -> str:
    if isinstance(owner, App):
        return "Everywhere"
    name = getattr(owner, "HELP_GROUP", "") or type(owner).__name__.removesuffix("Screen")
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()
    return words.capitalize()


def help_lines(
    rows: Sequence[KeyRow], commands: Sequence[tuple[str, str]], wanted: str, width: int
) -> list[Line]:
    """The lines of keys and commands, ``width`` cells wide, that contain ``wanted`` in any letter case."""
    needle = wanted.strip().lower()

    def matches(*texts: str | None) -> bool:
        return needle in " ".join(filter(None, texts)).lower()

    kept = [row for row in rows if matches(row.group, row.shown, row.binding.description, row.binding.id)]
    kept_commands = [command for command in commands if matches(*command)]
    column = _column((row.shown for row in kept), width)
    lines: list[Line] = []
    for group in dict.fromkeys(row.group for row in kept):
        lines.append(((group, "strong"),))
        for row in kept:
            if row.group == group:
                lines += _entry(row.shown, column, row.binding.description, row.binding.id or "", width)
        lines.append(BLANK)
    if kept_commands:
        lines.append((("Slash commands", "strong"),))
        column = _column((usage for usage, _ in kept_commands), width)
        for usage, does in kept_commands:
            lines += _entry(usage, column, does, "", width)
    return lines


def page_lines(
    rows: Sequence[KeyRow], commands: Sequence[tuple[str, str]], wanted: str, width: int
) -> list[Line]:
    """The whole screen: what MTP is, or the terms that match, then keys and commands."""
    keys = help_lines(rows, commands, wanted, width)
    if not wanted.strip():
        return [*introduction_lines(width), *keys]
    terms = term_lines(find(wanted), width)
    words: list[Line] = [(("Words", "strong"),), *terms, BLANK] if terms else []
    return [*words, *keys] or [((f"Nothing here mentions {wanted!r}.", "muted"),)]


def _column(texts: Iterable[str], width: int) -> int:
    """Width of the left column; texts that are longer have lines of their own."""
    widths = sorted(map(cell_len, texts))
    return max(8, min(MOST_COLUMN, width // 3, widths[-1])) if widths else 8


def _entry(left: str, column: int, does: str, action_id: str, width: int) -> list[Line]:
    """One row: the left column, and beside it the text and the id, on as many lines as they need."""
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
    """Lines that can also have the styles of tokens."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"lines--{name}" for name in LEGEND}


class HelpScreen(Sheet[None]):
    """Keys and commands, with a field that filters them."""

    CSS_PATH: ClassVar[StyleSheets] = ["../kit/sheet.tcss", "screen.tcss"]
    TITLE_TEXT = "Help"
    HINT = r"Type to filter · grey: its name for \[keys] in the settings · [b]Esc[/b] closes"

    def __init__(
        self, rows: Sequence[KeyRow], commands: Sequence[tuple[str, str]] = (), wanted: str = ""
    ) -> None:
        """``rows`` from collect_keys, before this screen is pushed; ``commands`` as (usage, help); ``wanted``
        is the text of the filter."""
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
        """Show the lines that contain the text."""
        self._show_lines()

    def on_resize(self) -> None:
        """The lines fill the width."""
        self.call_after_refresh(self._show_lines)

    def _show_lines(self) -> None:
        width = self.query_one(VerticalScroll).scrollable_content_region.width or self.size.width - 4
        wanted = self.query_one(Input).value
        self._view.set_lines(page_lines(self._rows, self._commands, wanted, width))

    def on_key(self, event: events.Key) -> None:
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
