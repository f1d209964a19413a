"""The banner: what went wrong with the engine, and keys that help."""

from __future__ import annotations

from textual.widgets import Static

from ds4chat.tui.controller import Chat
from ds4chat.tui.kit.lines import style_sheet


class Banner(Static):
    """One or two sentences above the prompt while they apply. Hidden while it has none."""

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

    def show_engine(self, chat: Chat) -> None:
        """Say what keeps the engine from answering, if anything does."""
        if chat.state in ("died", "failed"):
            model = "the model again" if chat.state == "died" else chat.model_name
            self.show(chat.trouble, f"F5 loads {model} · /model chooses another · /log shows the log")
        elif chat.state == "none":
            self.show("No model is loaded.", "/model chooses one · /model demo takes the demo", error=False)
        elif chat.warning:
            self.show(chat.warning)
        else:
            self.clear()

    def clear(self) -> None:
        """Hide it."""
        self.message = ""
        self.display = False
