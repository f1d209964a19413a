"""The base of the errors that are told to the user."""

from __future__ import annotations


class UserFacingError(Exception):
    """Its text is a sentence for the user: what happened and what to do. A command that raises one ends with
    exit code 1."""
