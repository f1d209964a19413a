"""Messages from widgets and screens to the chat screen and the app; none is sent per token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from textual.message import Message

from ds4chat.engine.events import Tuning
from ds4chat.settings.schema import Settings


@dataclass
class TuningChanged(Message):
    """The user changed the tuning."""

    tuning: Tuning
    """In force from the next step on."""


@dataclass
class PromptSubmitted(Message):
    """The user sent the prompt."""

    text: str
    """The whole prompt, with folded pastes expanded. Never empty."""


@dataclass
class TokenPicked(Message):
    """The user picked a token, in the text or in the confidence log."""

    reply: int
    """The reply's number, as in its events."""
    step: int
    """Index of the step in the reply."""
    token: int
    """Index of the token among the step's tokens."""


@dataclass
class ModelChosen(Message):
    """The user chose what to load."""

    model: str
    """Path of the target GGUF."""
    support: str
    """Path of the support GGUF, "embedded", or "" for none."""
    lookup: bool
    """Draft by lookup, without or before the support model."""


class DemoChosen(Message):
    """The user chose the demo, which comes with its own support model."""


class SettingsChanged(Message):
    """The user changed settings in the chat, which have been applied already. Posted to the app, so that a
    later save includes them."""

    def __init__(self, **changes: Any) -> None:
        """``changes`` are fields of Settings."""
        super().__init__()
        self.changes = changes


@dataclass
class SettingsSaved(Message):
    """Settings were changed and written to the settings file."""

    settings: Settings
    """All of them, as they are now."""


@dataclass
class CommandRequested(Message):
    """The user requested a slash command outside the prompt, such as by a click."""

    text: str
    """The command as it would be typed, slash included; without the argument that it needs, it is put into
    the prompt."""
