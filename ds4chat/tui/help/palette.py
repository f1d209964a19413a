"""What the command palette offers: every slash command, and every key of the chat that has no command."""

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
"""Added to the score of a command whose name begins with what is typed: more than any match has."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One entry: what it does, how else it is called, and what choosing it runs."""

    does: str
    called: str
    run: Callable[[], Any]


class PaletteCommands(Provider):
    """Finds commands by their name and by the words of what they do."""

    async def discover(self) -> Hits:
        """Everything, before a letter is typed."""
        for offer in self._offers():
            yield DiscoveryHit(offer.does, offer.run, help=_plain(offer.called))

    async def search(self, query: str) -> Hits:
        """The entries whose name or words match, with the letters that do marked."""
        matcher = self.matcher(query)
        named = "/" + query.strip().lower().removeprefix("/")
        for offer in self._offers():
            score = max(matcher.match(offer.does), matcher.match(offer.called))
            if score > 0:
                # Who types the beginning of a name wants that command, not one that mentions the word.
                score += BY_NAME_FIRST if offer.called.lower().startswith(named) else 0
                shown = matcher.highlight(offer.does)
                yield Hit(score, shown, offer.run, offer.does, _plain(offer.called))

    def _offers(self) -> Iterator[Offer]:
        app = self.app
        chat = app.get_default_screen()
        keys = {
            binding.id: (shown, binding) for node in (app, chat) for shown, binding in own_keys(node, app)
        }
        with_command: set[str] = set()
        for command in COMMANDS:
            with_command.add(command.action)
            shown, _ = keys.get(command.action, ("", None))
            called = f"{command.usage}  {shown}".rstrip()
            yield Offer(command.help, called, partial(app.post_message, CommandRequested(f"/{command.name}")))
        for name, (shown, binding) in keys.items():
            if name not in with_command and name != "app.palette":
                yield Offer(binding.description, shown, partial(self._act, binding.action))

    async def _act(self, action: str) -> None:
        await self.app.run_action(action, default_namespace=self.app.get_default_screen())


def _plain(text: str) -> str:
    """The text as markup that shows its brackets."""
    return text.replace("[", r"\[")
