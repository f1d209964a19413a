"""The welcome shown in an empty conversation."""

from __future__ import annotations

from textual.widgets import Static

from ds4chat.tui.kit.lines import style_sheet

TEXT = """\
[b $primary]ds4chat[/]

[$foreground-muted]Every token shows where it came from:[/]
[$token-accepted-style][$token-accepted]accepted[/][/] drafts, \
[$token-corrected-style][$token-corrected]corrected[/][/] ones, \
[$token-bonus-style][$token-bonus]bonus[/][/] tokens, [$token-plain-style][$token-plain]plain[/][/] decoding.

[b]Enter[/] [$foreground-muted]sends[/]   [b]/[/] [$foreground-muted]commands[/]   \
[b]F1[/] [$foreground-muted]help[/]   [b]F2[/] [$foreground-muted]panels[/]   \
[b]Ctrl+B[/] [$foreground-muted]earlier chats[/]"""

STARTERS = (
    ("Write a Python function that adds two numbers.", "most drafts hit, and bonus tokens follow"),
    ("Write a short story about a fox.", "hits and misses in turn"),
    ("Hello, who are you?", "many misses"),
)
"""Prompts for the demo's model, and what to expect of its tokens."""

OFFER = (
    "\n\n[$foreground-muted]Click one, or send [/][b]/try[/] [b]1[/][$foreground-muted] to [/][b]3[/]\n"
    + "\n".join(
        f"[b]{number}[/] [@click=screen.try_starter({number})]{text}[/] [$foreground-muted]{shows}[/]"
        for number, (text, shows) in enumerate(STARTERS, start=1)
    )
)

SHORT = "[$foreground-muted]Type below. [b]F1[/] is help.[/]"


class Welcome(Static):
    """A short introduction; shorter on a small screen."""

    DEFAULT_CSS = style_sheet(__package__, "welcome.tcss")

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(TEXT, id=id)
        self._offers = self._is_short = False

    def offer_starters(self, offers: bool) -> None:
        """Show or hide the suggested prompts."""
        if offers != self._offers:
            self._offers = offers
            self._draw()

    def on_resize(self) -> None:
        short = self.size.height < 8 or self.size.width < 40
        if short != self._is_short:
            self._is_short = short
            self._draw()

    def _draw(self) -> None:
        self.update(SHORT if self._is_short else TEXT + (OFFER if self._offers else ""))
