"""The banner: what went wrong with the engine, and the keys that help."""

from __future__ import annotations

from textual.widgets import Static

from ds4chat.tui.kit.lines import style_sheet


class Banner(Static):
    """One or two sentences above the prompt, until they no longer hold. Hidden while it has none."""

    DEFAULT_CSS = style_sheet(__package__, "banner.tcss")

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self.display = False
        self.message = ""

    def show(self, message: str, keys: str = "", *, error: bool = True) -> None:
        """Show a sentence and a line of keys."""
        self.message = message
        self.update(f"{message}\n{keys}" if keys else message)
        self.set_class(error, "-error")
        self.display = True

    def clear(self) -> None:
        """Hide it."""
        self.message = ""
        self.display = False
