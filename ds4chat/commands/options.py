"""Options of one run that are not settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OneShotOptions:
    """A one shot or a lossless check."""

    prompt: str | None
    """None if ``prompts`` is set, or if a check uses its own prompts."""
    json: bool = False
    """One JSON object on stdout instead of the text; with ``prompts`` one object per line."""
    raw: bool = False
    """Send the prompt as it is, without the chat template."""
    ignore_eos: bool = False
    """Continue past end tokens."""
    show_thinking: bool = False
    """Write the model's thinking to stderr; otherwise only the JSON has it."""
    parallel: int = 1
    """Prompts answered at once in one batched context; only with ``prompts``."""
    prompts: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """How ``bench`` runs and what happens to its result."""

    json: bool = False
    """The result as JSON on stdout, instead of the table."""
    save: str | None = None
    """File for the result as JSON; "" is a file in the data folder, None saves nothing."""
    quick: bool = False
    """Fewer tokens and texts: a rough answer in a short time."""
    plot: bool = False
    """Draw the result with block characters, too."""
    compare: str = ""
    """Base URL of a llama.cpp server that runs the same model, measured alongside; "" for none."""
