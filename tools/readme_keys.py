"""Writes the lists of keys and slash commands into README.md: python tools/readme_keys.py

They are read from the bindings and the command table themselves, so that they cannot differ from what the
chat does; a test compares.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ds4chat.tui.kit.key_names import spelled

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN, END = "<!-- keys: begin -->\n", "<!-- keys: end -->\n"
FIRST = ("Everywhere", "Chat", "Prompt text")
"""Groups that stand in sight; the others are folded."""
PLACES = {
    "Chat": "In the chat",
    "Prompt text": "In the prompt",
    "Transcript": "In the conversation (F4, or a click on a token)",
    "Panel title": "On a panel's title",
    "Confidence log": "In the Confidence panel",
    "Tuning": "In the Tuning panel and on the what-if values",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One action of one place."""

    place: str
    keys: str
    does: str
    action: str


def _joined(keys: Iterable[str]) -> str:
    return ", ".join(f"`{key}`" for key in dict.fromkeys(map(spelled, keys)))


async def chat_rows() -> list[Row]:
    """The keys of the app, the chat and every widget in it, by place, in the order of the help screen."""
    from ds4chat.settings.schema import Settings
    from ds4chat.tui.app import ChatApp
    from ds4chat.tui.help.screen import bound_keys

    app = ChatApp(Settings())
    async with app.run_test(size=(140, 45)) as pilot:
        await pilot.pause()
        found = bound_keys(app)
    return [
        Row(group, _joined(keys), binding.description, binding.id or "") for group, keys, binding in found
    ]


def screen_rows() -> list[Row]:
    """The keys of the screens that lie over the chat, by screen."""
    from textual.binding import Binding

    from ds4chat.tui.explorer.screen import ExplorerScreen
    from ds4chat.tui.explorer.table import RowTable
    from ds4chat.tui.explorer.whatif import WhatIfPanel
    from ds4chat.tui.history.screen import HistoryScreen
    from ds4chat.tui.kit.row_list import RowList
    from ds4chat.tui.log.screen import LogScreen
    from ds4chat.tui.models.screen import ModelPicker
    from ds4chat.tui.settings.screen import SettingsScreen

    screens: tuple[tuple[str, tuple[type, ...]], ...] = (
        ("Confidence explorer", (ExplorerScreen, RowTable, WhatIfPanel)),
        ("Stored conversations", (HistoryScreen, RowList)),
        ("Model picker", (ModelPicker,)),
        ("Settings", (SettingsScreen,)),
        ("Log", (LogScreen,)),
    )
    return [
        Row(name, _joined(binding.key.split(",")), binding.description, binding.id or "")
        for name, owners in screens
        for owner in owners
        for binding in vars(owner)["BINDINGS"]
        if isinstance(binding, Binding) and binding.id
    ]


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table: keys, what they do, their action's name for ``[keys]``."""
    lines = ["| key | what it does | in `[keys]` |", "| --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {row.keys} | {row.does} | `{row.action}` |" for row in rows)])


def section() -> str:
    """What stands between the two marks of the README."""
    from ds4chat.tui.chat.command_table import COMMANDS

    rows = [row for row in [*asyncio.run(chat_rows()), *screen_rows()] if row.action]
    parts = []
    for place in dict.fromkeys([*FIRST, *(row.place for row in rows)]):
        title, body = PLACES.get(place, place), table([row for row in rows if row.place == place])
        if place in FIRST:
            parts.append(f"**{title}**\n\n{body}")
        else:
            parts.append(f"<details><summary>{title}</summary>\n\n{body}\n\n</details>")
    commands = ["| command | what it does |", "| --- | --- |"]
    for command in COMMANDS:
        names = [f"`{command.usage}`".replace("|", "\\|"), *(f"`/{name}`" for name in command.aliases)]
        commands.append(f"| {', '.join(names)} | {command.help} |")
    return "\n\n".join([*parts, "**Slash commands**", "\n".join(commands)]) + "\n"


def written(readme: str, new: str) -> str:
    """``readme`` with ``new`` between its marks. Raises ValueError where they are missing."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}{new}{END}{after}"


def main() -> int:
    """Write the README anew; the exit code."""
    try:
        README.write_text(written(README.read_text(encoding="utf-8"), section()), encoding="utf-8")
    except (OSError, ValueError) as error:
        print(
            f"README.md was not written: {error}. It needs both marks {BEGIN!r} and {END!r}.", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
