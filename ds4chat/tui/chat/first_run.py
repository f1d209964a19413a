"""The card shown in the chat while there is no model: where to get one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from textual import work
from textual.content import Content
from textual.widgets import Static
from textual.worker import get_current_worker

from ds4chat.models.demo import INSTALL, demo_model
from ds4chat.models.errors import ModelFileError, shown_size
from ds4chat.models.naming import display_name
from ds4chat.models.search import describe_file, gguf_files, ollama_models, search_folders
from ds4chat.settings.schema import Settings
from ds4chat.text import counted
from ds4chat.tui.controller import EngineState
from ds4chat.tui.kit.lines import style_sheet

MOST_LOOKED_AT = 60
"""Most files whose headers are read; the picker reads all of them."""
MOST_NAMED = 3


class FirstRun(Static):
    """A card with three ways to a model: the demo, this disk, the hub."""

    DEFAULT_CSS = style_sheet(__package__, "first_run.tcss")

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.display = False
        self._disk = "looking on this disk…"
        self._begun = False

    def wanted_by(self, settings: Settings, state: EngineState) -> bool:
        """Whether to show the card. The first time, the disk is searched."""
        wanted = state == "none" and not (settings.model or settings.demo or settings.server)
        if wanted and not self._begun:
            self._begun = True
            self._search(settings.model_folders)
            self._draw()
        return wanted

    @work(group="search", exit_on_error=False)
    async def _search(self, model_folders: str) -> None:
        worker = get_current_worker()
        names, more = await asyncio.to_thread(_models_on_disk, model_folders, lambda: worker.is_cancelled)
        count = len(names)
        if count:
            named = ", ".join(names[:MOST_NAMED]) + (", …" if count > MOST_NAMED else "")
            models = f"{'at least ' if more else ''}{counted(count, 'model')}"
            self._disk = f"{models} on this disk: {named}"
        else:
            self._disk = "none found on this disk in the usual places; a path works, too"
        self._draw()

    def _draw(self) -> None:
        try:
            path = demo_model()
            demo = (
                f"loads the demo, {display_name(str(path))}: {shown_size(path.stat().st_size)}, already here"
            )
        except (ModelFileError, OSError):
            demo = f"loads the demo, once installed: {INSTALL}"
        # Names come from files: as variables they are not parsed as markup.
        self.update(
            Content.from_markup(
                "[b $primary]Choose a model first[/]\n\n"
                "[b]Enter[/]       [$foreground-muted]$demo[/]\n"
                "[b]/model[/]      [$foreground-muted]$disk[/]\n"
                "[b]/get[/] WORDS  [$foreground-muted]downloads one from the Hugging Face hub[/]",
                demo=demo,
                disk=self._disk,
            )
        )


def _models_on_disk(model_folders: str, cancelled: Callable[[], bool]) -> tuple[list[str], bool]:
    """Names of models on this disk, and True if there are files that were not read."""
    folders = search_folders(model_folders, "", os.environ, Path.home())
    ollama = ollama_models(os.environ, Path.home())
    files = [*islice(gguf_files(folders, cancelled), MOST_LOOKED_AT + 1), *ollama]
    found = [describe_file(path, ollama.get(path, "")) for path in files[:MOST_LOOKED_AT]]
    names = dict.fromkeys(model.name or model.title for model in found if model.is_target)
    return list(names), len(files) > MOST_LOOKED_AT
