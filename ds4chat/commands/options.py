"""What the command line asks of one run, beside the settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OneShotOptions:
    """A one shot or a lossless check."""

    prompt: str | None
    """None where there is none: ``prompts`` is set instead, or a check uses its own prompts."""
    json: bool = False
    """One JSON object on stdout instead of the text; with ``prompts`` one object a line."""
    raw: bool = False
    """The prompt as it stands, without the chat template."""
    ignore_eos: bool = False
    """Go on past end tokens."""
    show_thinking: bool = False
    """The model's thinking on stderr; without it, nowhere but in the JSON."""
    parallel: int = 1
    """Prompts answered at once in one batched context; only with ``prompts``."""
    prompts: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """How ``bench`` runs and what becomes of its result."""

    json: bool = False
    """The result as JSON on stdout, instead of the table."""
    save: str | None = None
    """File for the result as JSON; "" is a file in the data folder, None saves nothing."""
    quick: bool = False
    """Fewer tokens and texts: a rough answer in a short time."""
    plot: bool = False
    """Draw the result with block characters, too."""
    compare: str = ""
    """Base URL of a llama.cpp server that runs the same model, measured alongside; "" is none."""
