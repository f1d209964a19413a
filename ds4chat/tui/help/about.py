"""The about screen: versions, the machine, the model, folders, and the licences of the dependencies."""

from __future__ import annotations

import asyncio
import platform
import re
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.containers import VerticalScroll

from ds4chat import __version__
from ds4chat.engine.events import Loaded
from ds4chat.text import one_line
from ds4chat.tui.help.report import Facts, machine_facts, model_facts
from ds4chat.tui.kit.lines import BLANK, Line, LinesView
from ds4chat.tui.kit.sheet import Sheet, StyleSheets

ASK_S = 30.0
"""Seconds that llama.cpp may take to find its devices: a GPU's driver may have to wake up first."""
_LABEL = 10
"""Cells of the label of a fact."""
_NAME = 21
"""Cells of the name of what has a licence."""


def dependencies() -> list[str]:
    """The packages that ds4chat itself requires."""
    try:
        required = metadata.requires("ds4chat") or []
    except metadata.PackageNotFoundError:  # run from its folder
        return []
    return [re.split(r"[^\w.-]", line)[0] for line in required if "extra ==" not in line]


def package_licence(name: str) -> tuple[str, str]:
    """Version and licence of an installed package; ("not installed", "") for another."""
    try:
        data = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return "not installed", ""
    licence = (data.get_all("License-Expression") or [""])[0]
    if not licence:
        classifiers = data.get_all("Classifier") or []
        named = [c.rsplit("::", 1)[-1].strip() for c in classifiers if c.startswith("License ::")]
        licence = ", ".join(named) or (data.get_all("License") or [""])[0].strip().split("\n")[0]
    return data["Version"], licence[:60]


def build_lines() -> list[str]:
    """The devices of llama.cpp, as ``ds4chat --version`` prints them: the chat itself does not load it."""
    command = [sys.executable, "-P", "-m", "ds4chat", "--version"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=ASK_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ["llama.cpp did not say what it runs on. Run ds4chat --version in a shell to see why."]
    return [*done.stdout.splitlines()[1:], *done.stderr.splitlines()]


def about_lines(
    places: Sequence[tuple[str, Path]],
    build: Sequence[str],
    model: Sequence[tuple[str, str]],
    loaded: Loaded | None = None,
    rpc: str = "",
    width: int = 72,
) -> list[Line]:
    """The lines of the screen, of ``width`` cells at most. ``places``: files and folders, such as the
    settings file. ``build``: from build_lines. ``model``: from model_facts. ``rpc``: the setting."""
    lines: list[Line] = [
        (("ds4chat ", "strong"), (__version__, "")),
        *_plain("Chat that shows and steers multi-token prediction on llama.cpp.", width, "muted"),
        BLANK,
    ]
    facts = [("Python", platform.python_version()), *machine_facts(loaded), *model]
    facts += [(label, one_line(path)) for label, path in places]
    for label, value in facts:
        lines += _named(label.capitalize(), value, _LABEL, width, ("muted", ""))
    lines.append(BLANK)
    for at, line in enumerate(build):
        lines += _plain(one_line(line), width, "muted" if at else "")
    lines += [BLANK, (("Licences", "strong"),)]
    licences = [("ds4chat", "MIT")]
    for name in dependencies():
        version, licence = package_licence(name)
        licences.append((name, f"{version:<14} {licence}"))
    licences.append(("llama.cpp", "MIT, inside llama-cpp-python"))
    licences.append(
        ("demo model", "Apache-2.0, SmolLM2-135M-Instruct by HuggingFaceTB and our support model for it")
    )
    for name, licence in licences:
        lines += _named(f"  {name}", licence, _NAME, width, ("", "muted"))
    lines.append(BLANK)
    lines += _plain("It speculates as ds4 by antirez does, which inspired it.", width, "muted")
    lines += _plain(_where_text_goes(loaded, rpc), width, "muted")
    return lines


def _named(name: str, value: str, column: int, width: int, roles: tuple[str, str]) -> list[Line]:
    """A value behind its name, from ``column`` on, in as many lines as it needs."""
    pieces = textwrap.wrap(value, max(_LABEL, width - column), break_on_hyphens=False)
    return [
        ((f"{'' if place else name:<{column}}", roles[0]), (piece, roles[1]))
        for place, piece in enumerate(pieces)
    ]


def _plain(text: str, width: int, role: str) -> list[Line]:
    return [((piece, role),) for piece in textwrap.wrap(text, max(_LABEL, width), subsequent_indent="    ")]


def _where_text_goes(loaded: Loaded | None, rpc: str) -> str:
    if loaded is not None and loaded.server is not None:
        return f"What you write goes to the server {one_line(loaded.server.name)}."
    if rpc:
        return f"What you write goes, as numbers, to the RPC servers that hold the model: {one_line(rpc)}."
    return "Nothing you write leaves this machine."


class AboutScreen(Sheet[None]):
    """Versions, the machine, the model, places, licences."""

    CSS_PATH: ClassVar[StyleSheets] = ["../kit/sheet.tcss", "about.tcss"]
    TITLE_TEXT = "About"

    def __init__(
        self, places: Sequence[tuple[str, Path]] = (), loaded: Loaded | None = None, rpc: str = ""
    ) -> None:
        super().__init__()
        self._places = places
        self._loaded = loaded
        self._rpc = rpc
        self._build: Sequence[str] = ["Asking llama.cpp what it runs on …"]
        self._model: Facts = [("model", "reading its file …" if loaded else "none is loaded")]

    def compose_sheet(self) -> ComposeResult:
        with VerticalScroll():
            yield LinesView(id="about-lines")

    @work(exit_on_error=False)
    async def on_mount(self) -> None:
        self._model = await asyncio.to_thread(model_facts, self._loaded)
        self._show_lines()
        self._build = await asyncio.to_thread(build_lines)
        self._show_lines()

    def on_resize(self) -> None:
        """The lines are wrapped at the width."""
        self.call_after_refresh(self._show_lines)

    def _show_lines(self) -> None:
        view = self.query_one("#about-lines", LinesView)
        lines = about_lines(self._places, self._build, self._model, self._loaded, self._rpc, view.size.width)
        view.set_lines(lines)
