"""Names of the looks that rows have: each is a component class ``transcript--<name>`` in the style sheet."""

from __future__ import annotations

ROLES = (
    "plain",
    "accepted",
    "corrected",
    "bonus",
    "unknown",
    "approximate",
    "user",
    "user-bar",
    "name",
    "note",
    "warning",
    "error",
    "fold",
    "mark",
    "thinking-bar",
)

MD_ROLES = (
    "heading",
    "code",
    "quote",
    "bullet",
    "rule",
    "link",
    "url",
    "em",
    "strong",
    "strike",
    "code-block",
    "comment",
    "keyword",
    "name",
    "literal",
)
"""Looks of rendered Markdown: ``transcript--md-<name>``."""
