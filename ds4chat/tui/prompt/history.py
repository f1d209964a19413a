"""Earlier prompts, walked with up and down. Pure."""

from __future__ import annotations

from collections.abc import Iterable


class PromptHistory:
    """Prompts from oldest to newest, and which of them is shown."""

    def __init__(self, prompts: Iterable[str] = ()) -> None:
        self._prompts = list(prompts)
        self._place = len(self._prompts)
        self._unsent = ""

    def add(self, prompt: str) -> None:
        """Add a prompt that was sent, unless it is the same as the one before."""
        if not self._prompts or self._prompts[-1] != prompt:
            self._prompts.append(prompt)
        self._place = len(self._prompts)
        self._unsent = ""

    def older(self, current: str) -> str | None:
        """The prompt before the one shown; None at the oldest. ``current`` is kept while it is unsent."""
        if self._place == 0:
            return None
        if self._place == len(self._prompts):
            self._unsent = current
        self._place -= 1
        return self._prompts[self._place]

    def newer(self) -> str | None:
        """The prompt after the one shown, the unsent one last; None when that is shown."""
        if self._place >= len(self._prompts):
            return None
        self._place += 1
        return self._unsent if self._place == len(self._prompts) else self._prompts[self._place]
