"""What both benches share: their error, the progress bar, one reply, and where the result goes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from ds4chat.commands.options import BenchOptions
from ds4chat.commands.progress import ProgressLine, bar
from ds4chat.commands.running import RUN_ERROR, json_line, say
from ds4chat.engine.control import Control
from ds4chat.engine.events import Ended, Event, Generate, Revised, Step
from ds4chat.engine.sessions import AnySession
from ds4chat.errors import UserFacingError
from ds4chat.files import try_place, write_whole
from ds4chat.settings import paths

PAYS = 1.03
"""Speed over plain decoding from which speculation pays: less is within what two runs differ by."""


class BenchError(UserFacingError):
    """The measurement, or the server of --compare, cannot continue."""


class BenchProgress(ProgressLine):
    """How far the bench has come."""

    def __init__(self) -> None:
        super().__init__()
        self._started = time.monotonic()

    def __call__(self, done: int, total: int, what: str) -> None:
        """Show that ``done`` of ``total`` parts are done and ``what`` is being measured."""
        seconds = int(time.monotonic() - self._started)
        self.show(f"bench {bar(done, total)} {done}/{total}  {seconds} s  {what}")


def reply_of(
    session: AnySession, request: Generate, control: Control, note: Callable[[Event], object]
) -> tuple[list[Step], Ended] | None:
    """The steps of one reply, and how it ended; None if it was cancelled. ``note`` is called with every
    event. Raises BenchError when the engine or the server fails."""
    steps: list[Step] = []
    ended: list[Ended] = []

    def collect(event: Event) -> None:
        note(event)
        if isinstance(event, Step):
            steps.append(event)
        elif isinstance(event, Revised):
            steps[:] = event.steps
        elif isinstance(event, Ended):
            ended.append(event)

    session.generate(request, control, collect)
    end = ended[-1]
    if end.finish_reason == "cancelled":
        return None
    if end.finish_reason == "error" or not steps:
        raise BenchError(end.detail or "The model answered with nothing. Try another model.")
    return steps, end


def show(result: msgspec.Struct, text: str, options: BenchOptions, path: Path | None) -> int:
    """Print the result, as JSON or as this text, and save it; the exit code."""
    print(json_line(result) if options.json else text, flush=True)
    if path is None:
        return 0
    saved = json.dumps(msgspec.to_builtins(result), ensure_ascii=False, indent=2) + "\n"
    try:
        write_whole(path, [saved.encode()], overwrite=True)
    except OSError as error:
        say(f"{path} cannot be written: {error.strerror or error}. Copy the result from stdout.")
        return RUN_ERROR
    say(f"saved to {path}")
    return 0


def save_path(name: str | None) -> Path | None:
    """Where to save. Raises BenchError if that would fail, before anything is measured, and FolderError."""
    if name is None:
        return None
    path = (
        Path(name).absolute()
        if name
        else paths.made_folder("data") / time.strftime("bench-%Y%m%d-%H%M%S.json")
    )
    if path.is_dir():
        raise BenchError(f"{path} is a folder: --save takes a file.")
    if not path.parent.is_dir():
        raise BenchError(f"The folder {path.parent} does not exist. Make it, or save elsewhere.")
    try:
        try_place(path)
    except OSError as error:
        raise BenchError(
            f"{path} cannot be written: {error.strerror or error}. Name another file with --save FILE."
        ) from None
    return path
