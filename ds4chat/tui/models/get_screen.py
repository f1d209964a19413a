"""Get a model from the Hugging Face hub: search, choose a file, and download it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from ds4chat.models.download import DownloadProgress
from ds4chat.models.errors import shown_size
from ds4chat.text import one_line
from ds4chat.tui.kit.row_list import sided_row
from ds4chat.tui.kit.sheet import Sheet, StyleSheets

HINT = "Type words or USER/REPO · [b]Enter[/b] asks the hub · [b]Esc[/b] closes"
LIST_HINT = "[b]↑ ↓[/b] choose · [b]Enter[/b] confirms · [b]Esc[/b] goes back"
ASKING_HINT = "[b]Esc[/b] stops"
LOADING_HINT = "[b]Esc[/b] stops; what has arrived is kept, and the next start resumes there"
ASKING_STOPPED = "Stopped. Enter asks again."
LOADING_STOPPED = "Stopped. What has arrived is kept: Enter resumes there."
STOP_SECONDS = 5.0
"""How long a stopped download may take to exit by itself."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the list and what Enter does with it."""

    name: str
    right: str
    choose: Callable[[], object]


class GetModel(Sheet[Path | None]):
    """Dismissed with the path of the downloaded model, or with None.

    The command ``get`` does the work in a process of its own: Esc ends it immediately, whatever the network
    does, and the hub's library is not loaded here.
    """

    CSS_PATH: ClassVar[StyleSheets] = ["../kit/sheet.tcss", "screen.tcss"]
    TITLE_TEXT = "Get a model"
    HINT = HINT
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Stop, then back, then close", id="get.close"),
    ]

    def __init__(self, wanted: str = "") -> None:
        """``wanted``: words or USER/REPO to ask the hub for right away."""
        super().__init__()
        self._wanted = wanted
        self._rows: tuple[_Row, ...] = ()
        self._before: tuple[_Row, ...] = ()
        """The rows of the search while those of a repository are shown."""
        self._process: asyncio.subprocess.Process | None = None
        self._stopped = ASKING_STOPPED
        """What to say if the process is stopped."""

    def compose_sheet(self) -> ComposeResult:
        yield Input(self._wanted, placeholder="words, or USER/REPO", id="get-field")
        yield OptionList(id="get-list")
        yield Static(classes="model-detail", markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self._say("Nothing is asked of the hub before you press Enter.")
        if self._wanted:
            self._ask(self._wanted)

    # -- asking

    @on(Input.Submitted, "#get-field")
    def ask_typed(self, event: Input.Submitted) -> None:
        """Ask the hub for what was typed."""
        if event.value.strip():
            self._ask(event.value.strip())

    @work(exclusive=True, group="get", exit_on_error=False)
    async def _ask(self, text: str, before: tuple[_Row, ...] = ()) -> None:
        """Show the hits of a search, or a repository's files; ``before``: the rows that Esc returns to."""
        await self._end()
        self._stopped = ASKING_STOPPED
        self.show_hint(ASKING_HINT)
        self._say("Asking the hub…")
        # With a quantisation, the command would download; here it is chosen in the list.
        asked = [text.partition(":")[0], "--list"] if "/" in text else [f"--search={text}"]
        async with aclosing(self._run(*asked)) as answers:
            async for answer in answers:
                self._before = before
                if "models" in answer:
                    self._show_models(answer["models"])
                else:
                    self._show_found(answer["repositories"])

    def _show_found(self, found: list[dict[str, Any]]) -> None:
        rows = []
        for one in found:
            notes = [*one["marks"], *(["gated"] if one["gated"] else [])]
            right = f"{', '.join(notes)}  {one['downloads']:>11,}"
            rows.append(_Row(one["repo"], right, partial(self._open_repository, one["repo"])))
        said = (
            "At the right: what it has to draft with, and its downloads."
            if rows
            else "Nothing matches these words."
        )
        self._show(rows, said)

    def _open_repository(self, repository: str) -> None:
        self._ask(repository, self._rows)

    def _show_models(self, models: list[dict[str, Any]]) -> None:
        rows = []
        for one in models:
            size = "" if one["size_bytes"] is None else shown_size(one["size_bytes"])
            right = f"{one['quantisation']:<10} {size:>8}"
            rows.append(_Row(one["name"], right, partial(self._load, one["reference"])))
        self._show(rows, "Enter downloads the file." if rows else "This repository has no GGUF file.")

    # -- loading

    @work(exclusive=True, group="get", exit_on_error=False)
    async def _load(self, reference: str, then: Path | None = None) -> None:
        """Download a file; ``then``: the model that it drafts for, which is the one to load."""
        await self._end()
        self._stopped = LOADING_STOPPED
        self.show_hint(LOADING_HINT)
        self._say("Asking the hub…")
        async with aclosing(self._run(reference)) as answers:
            async for answer in answers:
                if "done" in answer:
                    self._say(DownloadProgress(**answer).words)
                else:
                    self._landed(answer, then)

    def _landed(self, answer: dict[str, Any], then: Path | None) -> None:
        path = Path(answer["path"])
        if answer["problem"]:
            self._idle(answer["problem"])
        elif then is not None or not answer["support"]:
            self.dismiss(then or path)
        else:
            rows = [_Row("Without it", "", partial(self.dismiss, path))]
            for one in answer["support"]:
                right = f"{one['drafts']}  {shown_size(one['size_bytes'])}"
                rows.insert(
                    0, _Row(f"Download {one['name']}", right, partial(self._load, one["reference"], path))
                )
            self._before = ()
            self._show(rows, f"{path.name} is here. This file can draft for it.")

    # -- the process

    async def _run(self, *asked: str) -> AsyncGenerator[dict[str, Any], None]:
        """The objects that ``ds4chat get`` prints; an error is shown."""
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ds4chat", "get", "--json", *asked),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=1 << 22,
        )
        assert process.stdout is not None
        failed = ""
        async for line in process.stdout:
            answer = json.loads(line)
            if "error" in answer:
                failed = str(answer["error"])
            else:
                yield answer
        if await process.wait():
            self._idle(failed or "The hub's answer ended early. Enter asks again; /log may say more.")

    @property
    def _busy(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def _end(self) -> None:
        """Stop the running process and wait for its end: it may hold the file that is asked for next, and the
        event loop must not close before it."""
        process = self._process
        if process is not None and self._busy:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
            try:
                await asyncio.wait_for(process.wait(), STOP_SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()

    async def on_unmount(self) -> None:
        await self._end()

    # -- the screen

    def _show(self, rows: Sequence[_Row], said: str) -> None:
        self._rows = tuple(rows)
        self._draw_rows(0)
        if rows:
            self.query_one(OptionList).focus()
        self._idle(said)

    def _idle(self, said: str) -> None:
        """Say how the last process ended, and which keys the rows take."""
        self.show_hint(LIST_HINT if self._rows else HINT)
        self._say(said)

    def _draw_rows(self, at: int | None) -> None:
        options = self.query_one(OptionList)
        width = max(30, options.scrollable_content_region.width)
        options.set_options([Option(sided_row(" ", row.name, row.right, width)) for row in self._rows])
        options.highlighted = at

    def _say(self, sentence: str) -> None:
        for line in self.query(".model-detail").results(Static):  # none while the screen is taken down
            line.update(one_line(sentence))

    @on(OptionList.OptionSelected)
    def choose_selected(self, event: OptionList.OptionSelected) -> None:
        """Do what the row is for."""
        if event.option_index < len(self._rows):
            self._rows[event.option_index].choose()

    def on_resize(self) -> None:
        """The rows fill the width."""
        self._draw_rows(self.query_one(OptionList).highlighted)

    def action_close(self) -> None:
        """Stop the running process; else go back from a repository to the search; else close."""
        if self._busy:
            self._stop()
        elif self._before:
            rows, self._before = self._before, ()
            self._show(rows, "")
        else:
            self.dismiss(None)

    @work(exclusive=True, group="get", exit_on_error=False)
    async def _stop(self) -> None:
        await self._end()
        self._idle(self._stopped)
