"""The about screen: versions, the machine and the model, where things are kept, and the licences of what
ds4chat stands on."""

from __future__ import annotations

import platform
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
"""Most seconds that llama.cpp has to say what it runs on: a GPU's driver may have to wake first."""
PACKAGES = (
    "textual",
    "rich",
    "llama-cpp-python",
    "numpy",
    "gguf",
    "msgspec",
    "jinja2",
    "platformdirs",
    "tomli-w",
)


_VALUE = 64
"""Cells of a line for a value, so that a path is whole on a narrow terminal, too."""


def package_licence(name: str) -> tuple[str, str]:
    """Version and licence that an installed package states; ("not installed", "") for another."""
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
    """What llama.cpp runs on here, by ``ds4chat --version`` in a process of its own: no screen loads it."""
    command = [sys.executable, "-P", "-m", "ds4chat", "--version"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=ASK_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ["llama.cpp does not say what it runs on; ds4chat --version in a shell shows why"]
    return [*done.stdout.splitlines()[1:], *done.stderr.splitlines()]


def about_lines(
    places: Sequence[tuple[str, Path]], build: Sequence[str], loaded: Loaded | None = None
) -> list[Line]:
    """What the screen says. ``places``: files and folders to name, such as the settings file. ``build``: what
    llama.cpp runs on."""
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
    for name in PACKAGES:
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

    def on_mount(self) -> None:
        self._show_build(self.query_one("#about-lines", LinesView))

    @work(thread=True, exit_on_error=False)
    def _show_build(self, view: LinesView) -> None:
        self.app.call_from_thread(view.set_lines, about_lines(self._places, build_lines(), self._loaded))
