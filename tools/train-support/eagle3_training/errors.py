"""The one exception that a user of these scripts sees."""

from __future__ import annotations


class TrainingError(Exception):
    """A step cannot be done; the text is a sentence that says what happened and what to do."""
