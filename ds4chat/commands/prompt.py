"""The prompts of a one shot: from the command line, a file, or a pipe."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ds4chat.commands.arguments import UsageError
from ds4chat.files import NotRegularError, read_regular

PATIENCE_S = 3.0
"""How long a pipe is read before saying so."""
MAX_BYTES = 64 << 20
_TOO_LARGE = "The prompt is larger than 64 MiB, more than any context holds: shorten it."


def piped() -> bool:
    """Whether standard input is a pipe, a socket or a file, which may hold a prompt."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):
        # Closed, or replaced by an object without a descriptor.
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def prompt_of(text: str | None, file: str | None, *, raw: bool, stdin: bool = True) -> str | None:
    """The prompt from these options and a pipe; None if there is none. Raises UsageError.

    The pipe's text is appended to ``text`` after a blank line. Only ``raw`` keeps a final newline.
    """
    if text is not None and file is not None:
        raise UsageError("-p and --prompt-file both give the prompt: leave one of them out.")
    if file is not None:
        prompt = _trimmed(_file_text(file), raw)
    else:
        if text is not None:
            text = _argument(text)
        piped_text = _trimmed(_stdin_text(), raw) if stdin and piped() else None
        if text is None and piped_text is None:
            return None
        prompt = "\n\n".join(part for part in (text, piped_text) if part)
    if not prompt or (not raw and not prompt.strip()):
        raise UsageError("The prompt is empty: give a text with -p, --prompt-file or through a pipe.")
    return prompt


def _stdin_text() -> str:
    """All of standard input as text. Raises UsageError when it is not UTF-8."""
    with _announced("standard input until it ends; use </dev/null for none"):
        data = _read(sys.stdin.buffer)
    return _decoded(data, "Standard input")


def prompts_of(file: str) -> tuple[str, ...]:
    """The prompts of a file: one per line, without blank lines; in a .jsonl file each line is a JSON string
    or an object with a "prompt". Raises UsageError."""
    text = _file_text(file)
    as_json = file.lower().endswith(".jsonl")
    prompts: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            prompts.append(
                _json_prompt(line, f"{file}, line {number}") if as_json else line.removesuffix("\r")
            )
    if not prompts:
        raise UsageError(f"{file} has no prompts: write one per line.")
    return tuple(prompts)


def _json_prompt(line: str, place: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise UsageError(f'{place}: this is not JSON; write "a prompt" or {{"prompt": "..."}}.') from None
    if isinstance(value, dict):
        value = value.get("prompt")
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f'{place}: it has no prompt; write "a prompt" or {{"prompt": "..."}}.')
    return _argument(value, place)


def _argument(text: str, place: str = "The prompt given with -p") -> str:
    """``text``, unless it was not valid UTF-8: Python keeps such bytes as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        offset = len(text[: error.start].encode())
        raise UsageError(f"{place} is not valid UTF-8 at byte {offset}: convert it to UTF-8.") from None
    return text


def _file_text(file: str) -> str:
    if file == "-":
        return _stdin_text()
    try:
        data = _contents(file)
    except FileNotFoundError:
        raise UsageError(f"{file} does not exist: name a text file with the prompt.") from None
    except IsADirectoryError:
        raise UsageError(f"{file} is a folder: name a text file.") from None
    except NotRegularError as error:
        raise UsageError(
            f"{file} cannot be read: {error.strerror}. Name a text file, or send the prompt through a pipe: "
            "--prompt-file - reads standard input."
        ) from None
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise UsageError(_TOO_LARGE) from None
        raise UsageError(
            f"{file} cannot be read: {error.strerror}. Change that, or name another file."
        ) from None
    return _decoded(data, file)


def _contents(file: str) -> bytes:
    """The bytes of a regular file or of a named pipe, such as the shell's ``<(command)``. Raises OSError."""
    try:
        return read_regular(file, MAX_BYTES)
    except NotRegularError:
        if not Path(file).is_fifo():
            raise
    with _announced(f"{file} until it ends"), open(file, "rb") as pipe:  # opening it waits for its writer
        return _read(pipe)


def _read(file: BinaryIO) -> bytes:
    data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise UsageError(_TOO_LARGE)
    return data


def _decoded(data: bytes, place: str) -> str:
    try:
        # Editors on Windows put a byte-order mark before the text.
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{place} is not valid UTF-8: byte {error.start} (0x{data[error.start]:02x}) is out of place. "
            "Convert it to UTF-8."
        ) from None


def _trimmed(text: str, raw: bool) -> str:
    return text if raw else text.removesuffix("\n").removesuffix("\r")


@contextmanager
def _announced(source: str) -> Iterator[None]:
    """Say what is being read if it takes long: a pipe that nobody writes to or closes looks like a hang."""

    def say_so() -> None:
        print(f"ds4chat: reading the prompt from {source}.", file=sys.stderr)

    timer = threading.Timer(PATIENCE_S, say_so)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # a process with threads could not be forked (guard.supervised)
