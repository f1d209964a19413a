"""The prompt: the text field, the queue of prompts, and completions."""

from __future__ import annotations

from ds4chat.tui.prompt.area import PromptArea

__all__ = ["PromptArea"]
