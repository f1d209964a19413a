"""Recorded answers of real servers, read back, and the truth about their tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from ds4chat.engine.events import Token
from ds4chat.servers.dialect import Block, End, Piece, PromptProgress, Reader, Revision
from ds4chat.servers.reading import Reading

FOLDER = Path(__file__).parent / "recorded"
TRUTH: dict[str, dict[str, list[object]]] = json.loads((FOLDER / "truth.json").read_text())
LLAMA = sorted(p.stem for p in FOLDER.glob("*.sse") if not p.stem.startswith("vllm"))
VLLM = sorted(p.stem for p in FOLDER.glob("vllm*.sse"))


@cache
def recorded(stem: str) -> bytes:
    """The body of a recorded answer."""
    return (FOLDER / f"{stem}.sse").read_bytes()


def pieces(reader: Reader, parts: Iterable[bytes]) -> list[Piece]:
    """What an answer of these parts says, to its end."""
    reading = Reading(reader)
    found = [piece for part in parts for piece in reading.feed(part)]
    return found + list(reading.finish())


def blocks(found: Iterable[Piece]) -> list[Block]:
    """The steps of an answer as they stand at its end."""
    steps: list[Block] = []
    for piece in found:
        if isinstance(piece, Block):
            steps.append(piece)
        elif isinstance(piece, Revision):
            steps = list(piece.blocks)
    return steps


def tokens(found: Iterable[Piece]) -> list[Token]:
    """The tokens of an answer."""
    return [token for block in blocks(found) for token in block.tokens]


def end(found: Iterable[Piece]) -> End | None:
    """Its end, if it has one."""
    return next((piece for piece in found if isinstance(piece, End)), None)


def its_end(found: Iterable[Piece]) -> End:
    """Its end, which it must have."""
    last = end(found)
    assert last is not None
    return last


def progress(found: Iterable[Piece]) -> list[PromptProgress]:
    """How its prompt was read."""
    return [piece for piece in found if isinstance(piece, PromptProgress)]
