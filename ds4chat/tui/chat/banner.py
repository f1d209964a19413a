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

    def show_engine(self, chat: Chat) -> None:
        """Say what keeps the engine from answering, if anything does."""
        keys = ""
        if chat.state in ("died", "failed"):
            model = "the model again" if chat.state == "died" else chat.model_name
            message = chat.trouble
            keys = f"F5 loads {model} · /model chooses another · /log shows the log"
        elif chat.state == "none":
            message = "No model is loaded."
            keys = "/model chooses one · /model demo loads the demo"
        else:
            message = chat.warning
        self.show(message, keys, error=chat.state != "none")

    def show(self, message: str, keys: str = "", *, error: bool = True) -> None:
        """Show a sentence and a line of keys; nothing without a sentence."""
        self.update(f"{message}\n{keys}" if keys else message)
        self.set_class(error, "-error")
        self.display = bool(message)
