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
from ds4chat.tui.help.report import machine_facts, model_facts
from ds4chat.tui.kit.lines import BLANK, Line, LinesView
from ds4chat.tui.kit.sheet import Sheet, StyleSheets

ASK_S = 30.0
"""Seconds that llama.cpp may take to find its devices: a GPU's driver may have to wake up first."""
_VALUE = 64
"""Cells of a value in a line, so that a long path is shown whole on a narrow terminal."""


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
    places: Sequence[tuple[str, Path]], build: Sequence[str], loaded: Loaded | None = None
) -> list[Line]:
    """The lines of the screen. ``places``: files and folders, such as the settings file. ``build``: from
    build_lines."""
    facts = [*machine_facts(loaded), *model_facts(loaded)]
    lines: list[Line] = [
        (("ds4chat ", "strong"), (__version__, "")),
        (("Chat that shows and steers multi-token prediction on llama.cpp.", "muted"),),
        BLANK,
        (("Python    ", "muted"), (platform.python_version(), "")),
    ]
    facts += [(label, one_line(path)) for label, path in places]
    for label, value in facts:
        for place, piece in enumerate(textwrap.wrap(value, _VALUE, break_on_hyphens=False)):
            lines.append(((f"{'' if place else label.capitalize():<10}", "muted"), (piece, "")))
    lines += [BLANK, *(((one_line(line), "muted" if at else ""),) for at, line in enumerate(build))]
    lines += [BLANK, (("Licences", "strong"),), (("  ds4chat            ", ""), ("MIT", "muted"))]
    for name in dependencies():
        version, licence = package_licence(name)
        lines.append(((f"  {name:<18} ", ""), (f"{version:<14} ", ""), (licence, "muted")))
    lines += [
        (("  llama.cpp          ", ""), ("MIT, inside llama-cpp-python", "muted")),
        (
            ("  demo model         ", ""),
            ("Apache-2.0, SmolLM2-135M-Instruct by HuggingFaceTB and our support model for it", "muted"),
        ),
        BLANK,
        (("It speculates as ds4 by antirez does, which inspired it.", "muted"),),
        ((_where_text_goes(loaded), "muted"),),
    ]
    return lines


def _where_text_goes(loaded: Loaded | None) -> str:
    if loaded is not None and loaded.server is not None:
        return f"What you write goes to the server {one_line(loaded.server.name)}."
    return "Nothing you write leaves this machine."


class AboutScreen(Sheet[None]):
    """Versions, the machine, the model, places, licences."""

    CSS_PATH: ClassVar[StyleSheets] = ["../kit/sheet.tcss", "about.tcss"]
    TITLE_TEXT = "About"

    def __init__(self, places: Sequence[tuple[str, Path]] = (), loaded: Loaded | None = None) -> None:
        super().__init__()
        self._places = places
        self._loaded = loaded

    def compose_sheet(self) -> ComposeResult:
        with VerticalScroll():
            view = LinesView(id="about-lines")
            view.set_lines(about_lines(self._places, ["Asking llama.cpp what it runs on …"], self._loaded))
            yield view

    @work(exit_on_error=False)
    async def on_mount(self) -> None:
        build = await asyncio.to_thread(build_lines)
        view = self.query_one("#about-lines", LinesView)
        view.set_lines(about_lines(self._places, build, self._loaded))
