"""The transcript: the conversation as one scrolling list of rows."""

from __future__ import annotations

from ds4chat.tui.transcript.view import Transcript

__all__ = ["Transcript"]
