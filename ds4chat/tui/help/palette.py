"""The command palette: every slash command, and every key of the chat without a command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from textual.command import DiscoveryHit, Hit, Hits, Provider

from ds4chat.tui.command_table import COMMANDS
from ds4chat.tui.help.screen import own_keys
from ds4chat.tui.messages import CommandRequested

BY_NAME_FIRST = 1000.0
"""Added to the score of a command whose name begins with the typed text: more than any match has."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One entry: what it does, its command and key, and what choosing it runs."""

    does: str
    called: str
    run: Callable[[], Any]


class PaletteCommands(Provider):
    """Finds commands by their name and by their description."""

    async def discover(self) -> Hits:
        """All entries, before a letter is typed."""
        for offer in self._offers():
            yield DiscoveryHit(offer.does, offer.run, help=_plain(offer.called))

    async def search(self, query: str) -> Hits:
        """The entries whose name or description matches, with the matching letters marked."""
        matcher = self.matcher(query)
        named = "/" + query.strip().lower().removeprefix("/")
        for offer in self._offers():
            score = max(matcher.match(offer.does), matcher.match(offer.called))
            if score > 0:
                # The beginning of a name means that command rather than one that mentions the word.
                score += BY_NAME_FIRST if offer.called.lower().startswith(named) else 0
                shown = matcher.highlight(offer.does)
                yield Hit(score, shown, offer.run, offer.does, _plain(offer.called))

    def _offers(self) -> Iterator[Offer]:
        app = self.app
        chat = app.get_default_screen()
        keys = {row.binding.id: row for node in (app, chat) for row in own_keys(node, app)}
        for command in COMMANDS:
            row = keys.get(command.action)
            called = f"{command.usage}  {row.shown}" if row else command.usage
            yield Offer(command.help, called, partial(app.post_message, CommandRequested(f"/{command.name}")))
        listed = {"app.palette", *(command.action for command in COMMANDS)}
        for name, row in keys.items():
            if name not in listed:
                yield Offer(row.binding.description, row.shown, partial(self._act, row.binding.action))

    async def _act(self, action: str) -> None:
        await self.app.run_action(action, default_namespace=self.app.get_default_screen())


def _plain(text: str) -> str:
    """The text as markup that shows its brackets."""
    return text.replace("[", r"\[")
