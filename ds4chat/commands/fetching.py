"""Downloads from the Hugging Face hub for a command, with progress on stderr."""

from __future__ import annotations

import sys
from pathlib import Path

from ds4chat.commands.progress import ProgressLine
from ds4chat.models.download import DownloadProgress, fetch, resolve
from ds4chat.models.errors import shown_size
from ds4chat.models.repository import HubModel, parse_reference
from ds4chat.text import json_text, one_line


def fetch_named(text: str) -> Path:
    """The file that ``-hf USER/REPO[:QUANT]`` names, downloaded if it is not in the cache; progress on
    stderr. Raises ModelFileError."""
    found = resolve(parse_reference(text))
    return found if isinstance(found, Path) else fetch_shown(found)


def fetch_shown(model: HubModel, *, json: bool = False) -> Path:
    """Download a model and show its progress: as JSON lines, or as one line on stderr that is redrawn. Raises
    ModelFileError."""
    try:
        return fetch(model, _json_progress) if json else _fetch_drawn(model)
    except KeyboardInterrupt:
        print(
            "ds4chat: Stopped. The part downloaded so far is kept: the same command resumes from there.",
            file=sys.stderr,
        )
        raise


def _fetch_drawn(model: HubModel) -> Path:
    size = f" ({shown_size(model.size)})" if model.size is not None else ""
    print(f"Fetching {one_line(model.name)}{size} from {model.repo}", file=sys.stderr)
    with ProgressLine() as line:
        return fetch(model, lambda progress: line.show(progress.words))


def _json_progress(progress: DownloadProgress) -> None:
    row = {"done": progress.done, "total": progress.total, "speed": progress.speed, "left": progress.left}
    print(json_text(row), flush=True)
