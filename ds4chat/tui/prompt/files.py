"""Text files in a prompt, and long texts folded to a mark in it."""

from __future__ import annotations

import errno
import os
import re

from ds4chat.files import ANSWER_SECONDS, read_regular, user_path, within
from ds4chat.text import counted, without_controls

LARGEST = 1 << 20
"""Bytes of a file that is put into a prompt: more than any local model's context holds."""

MENTION = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|(\S+))')
"""A path after an @, quoted if it has blanks."""


class FileError(Exception):
    """A file cannot go into a prompt; the text is a sentence for the user."""


def read_text(name: str) -> str:
    """The text of a file for a prompt. Raises FileError."""
    try:
        data = read_regular(user_path(name), LARGEST)
    except FileNotFoundError:
        raise FileError(f"{name} does not exist. Give the path of a text file.") from None
    except IsADirectoryError:
        raise FileError(f"{name} is a folder. Give the path of a text file.") from None
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise FileError(f"{name} has more than {LARGEST >> 20} MiB. Give a part of it.") from None
        raise FileError(f"{name} cannot be read: {error.strerror}. Give the path of a text file.") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"{name} is not UTF-8 text: byte {error.start} is not. Convert it first.") from None
    if "\x00" in text:
        raise FileError(f"{name} is not text: it has NUL bytes.")
    return without_controls(text)


def quoted(name: str, text: str) -> str:
    """A file as it is sent: its name, and its text between fences longer than any inside."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{os.path.basename(name)}:\n{fence}\n{text.rstrip()}\n{fence}\n"


class Folds:
    """Long texts that are shown in the prompt as short marks, such as ``⟦paste 1 · 42 lines⟧``."""

    MARK = re.compile(r"⟦[^⟦⟧\n]*⟧")

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._count = 0

    def add(self, text: str, name: str = "", lines: int = 0) -> str:
        """The mark for a text. ``name`` and ``lines``: those of the file that it came from."""
        self._count += not name
        lines = lines or text.count("\n") + 1
        label = name.translate(_PLAIN) or f"paste {self._count}"
        mark = f"⟦{label} · {counted(lines, 'line')}⟧"
        while mark in self._texts:
            mark = mark.replace(" · ", "′ · ", 1)
        self._texts[mark] = text
        return mark

    def expand(self, text: str) -> str:
        """``text`` with every mark replaced by its text."""
        return self.MARK.sub(lambda match: self._texts.get(match.group(), match.group()), text)

    def text_of(self, mark: str) -> str | None:
        """The text of a mark; None if it is not one of these."""
        return self._texts.get(mark)

    def around(self, line: str, column: int) -> tuple[int, int] | None:
        """Beginning and end of the mark around a column of a line, or next to it."""
        for match in self.MARK.finditer(line):
            if match.start() <= column <= match.end() and match.group() in self._texts:
                return match.span()
        return None


_PLAIN = str.maketrans(dict.fromkeys("⟦⟧\n\t", " "))


def with_mentions(text: str) -> str:
    """``text`` with each ``@path`` of an existing file replaced by the file. Other words that begin with @
    stay as they are. Raises FileError for a file that cannot be read."""

    def replace(match: re.Match[str]) -> str:
        name = match.group(1) or match.group(2)
        path = user_path(name)
        try:
            there = within(ANSWER_SECONDS, lambda: os.path.exists(path) and not os.path.isdir(path))
        except TimeoutError as error:
            raise FileError(f"{name} cannot be read: {error.strerror}.") from None
        return quoted(name, read_text(name)) if there else match.group()

    return MENTION.sub(replace, text)
