"""The prompt: where messages and commands are written, with what waits and what may be completed."""

from __future__ import annotations

from ds4chat.tui.prompt.area import PromptArea

__all__ = ["PromptArea"]
