"""Text that drives a terminal, and what of it came through."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import tiny
from kits.stored_replies import ended, keep, step

from ds4chat.settings.paths import CONFIG_NAME
from ds4chat.store import FILE_NAME, ModelIdentity, open_store
from ds4chat.store.recording import Request

ACTS = {
    "sets the title": "\x1b]0;PWN",
    "moves the cursor": "\x1b[7;66r",
    "C1 sequence": "\x9b66;6H",
    "resets the terminal": "\x1bc",
    "bell": "\x07",
    "backspace": "\x08",
    "delete": "\x7f",
    "turns the writing": "\u202e",
    "isolates": "\u2066",
    "separates lines": "\u2028",
}
"""Nothing that ds4chat or Textual writes for itself."""

TEXT = "evil " + "".join(ACTS.values()) + " [/b][red] \x1b[31m\r\nFORGED\rline"
"""All of it, markup that does not close, and line ends."""

NAME = TEXT.replace("/", "")
"""The same as the name of a file."""

BYTES = NAME + "\udcff"
"""The same with a byte that is not UTF-8."""


_POINTER = b"\x1b]22;default\x07"
"""Textual's own: the shape of the mouse pointer."""


def leaks(written: bytes) -> list[str]:
    """What in the bytes that a terminal got would act on it, ds4chat's and Textual's own sequences aside."""
    try:
        text = written.replace(_POINTER, b"").decode()
    except UnicodeDecodeError:
        return ["invalid UTF-8"]
    return [what for what, acts in ACTS.items() if acts in text]


class ScreenStream(io.TextIOWrapper):
    """A text stream that says it is a terminal, over bytes."""

    def __init__(self) -> None:
        self.bytes = io.BytesIO()
        super().__init__(self.bytes, encoding="utf-8", errors="strict", newline="")

    def isatty(self) -> bool:
        return True

    @property
    def written(self) -> bytes:
        self.flush()
        return self.bytes.getvalue()


@dataclass(frozen=True)
class Place:
    """Where the hostile files are."""

    home: Path
    model: Path
    settings: Path
    missing: str
    garbage: Path


def toml(text: str) -> str:
    """A TOML string."""
    return '"' + "".join(f"\\U{ord(c):08x}" if not c.isalnum() else c for c in text) + '"'


def lay_out(root: Path, tiny_dir: Path) -> Place:
    """A home, a model and settings in ``root`` in which every name, path and text is hostile."""
    home = root / "home"
    (home / "themes").mkdir(parents=True)
    store = open_store(home / FILE_NAME)
    recorder = store.record(Request(TEXT, model=ModelIdentity(f"/m/{NAME}", TEXT), system=TEXT))
    recorder.append(step(0))
    keep(recorder, ended("cancelled", tail=TEXT))
    assert recorder.conversation is not None
    store.conversations.rename(recorder.conversation, TEXT)
    store.history.add_prompt(TEXT)
    store.history.used_model(f"/m/{NAME}", NAME, False, TEXT)
    store.close()
    named = tiny.build("llama", tiny_dir, name=TEXT, vocabulary="hostile")
    model = root / f"{NAME}.gguf"
    model.write_bytes(named.read_bytes())
    garbage = root / f"garbage {BYTES}.gguf"
    garbage.write_bytes(b"GGUF" + TEXT.encode())
    text = toml(TEXT)
    settings = root / f"settings {NAME}.toml"
    (home / CONFIG_NAME).write_text(
        f"system-prompt = {text}\ntheme = {text}\n{text} = 1\n[keys]\n{text} = {text}\n"
        f"[presets.{text}]\ntemp = 0.5\n",
        encoding="utf-8",
    )
    settings.write_text(
        f"{text} = 1\ntheme = {text}\nsystem-prompt = {text}\nsplit-mode = {text}\nctk = {text}\n"
        f"[keys]\n{text} = {text}\n[presets.{text}]\ntemp = {text}\n{text} = 2\n",
        encoding="utf-8",
    )
    theme = f"{text} = {text}\n[base]\nprimary = {text}\n"
    (home / "themes" / f"{NAME}.toml").write_text(theme, encoding="utf-8")
    (home / "ds4chat.log").write_text(TEXT * 3, encoding="utf-8", errors="surrogateescape")
    return Place(home, model, settings, str(root / f"missing {BYTES}.gguf"), garbage)
