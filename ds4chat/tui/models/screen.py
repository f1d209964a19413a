"""The model picker: first the target, then what drafts for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from ds4chat.files import is_regular, user_path
from ds4chat.models.demo import demo_model
from ds4chat.models.errors import ModelFileError, shown_size
from ds4chat.models.search import (
    FoundModel,
    SupportChoice,
    describe_file,
    distinct_names,
    gguf_files,
    ollama_models,
    search_folders,
    support_choices,
)
from ds4chat.text import one_line
from ds4chat.tui.kit.row_list import sided_row
from ds4chat.tui.kit.sheet import Sheet, StyleSheets
from ds4chat.tui.messages import DemoChosen, ModelChosen

DEMO = "demo"
FULL_WIDTH = 48
"""Cells of a row from which it shows the architecture too."""
BATCH = 16
"""Models whose headers are read before they are shown."""
TARGET_HINT = "Type to filter, or a path · [b]Enter[/b] picks it · [b]Ctrl+G[/b] gets one · [b]Esc[/b] closes"
SUPPORT_HINT = "[b]Enter[/b] loads · [b]ctrl+l[/b] lookup first: {} · [b]Esc[/b] back to the models"


class ModelPicker(Sheet[ModelChosen | None]):
    """Dismissed with the ModelChosen that it also posts to the app, or with None."""

    CSS_PATH: ClassVar[StyleSheets] = ["../kit/sheet.tcss", "screen.tcss"]
    TITLE_TEXT = "Model"
    HINT = TARGET_HINT
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Back, then close", id="models.close"),
        Binding("ctrl+g", "get", "Get a model from the hub", id="models.get"),
        Binding("ctrl+l", "toggle_lookup", "Lookup before the support model", id="models.lookup"),
    ]

    def __init__(
        self,
        model_folders: str = "",
        current_model: str = "",
        recent: Sequence[str] = (),
        *,
        home: Path | None = None,
        get: str | None = None,
    ) -> None:
        """``model_folders`` is the setting of that name; ``recent`` are paths of the models used last. If
        ``get`` is not None, the screen for the hub opens, and looks for it unless it is empty."""
        super().__init__()
        self._get = get
        self._home = home or Path.home()
        self._folders = search_folders(model_folders, current_model, os.environ, self._home)
        self._current = current_model
        self._recent = list(recent)
        self._found: list[FoundModel] = []
        self._searched = False
        self._shown: list[FoundModel] = []
        self._target: Path | None = None
        self._choices: list[SupportChoice] = []
        self._lookup_first = False

    def compose_sheet(self) -> ComposeResult:
        yield Input(placeholder="filter, or the path of a .gguf file", id="model-filter")
        yield OptionList(id="model-list")
        yield Static(classes="model-detail", markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self._show_targets()
        self._search()
        if self._get is not None:
            self.action_get(self._get)

    # -- searching

    @work(exit_on_error=False)
    async def _search(self) -> None:
        """Show the models on disk, some at a time as their headers are read."""
        models = self._models_on_disk()
        while batch := await asyncio.to_thread(lambda: list(islice(models, BATCH))):
            self._found += batch
            self._show_found()
        self._searched = True
        self._show_found()

    def _models_on_disk(self) -> Iterator[FoundModel]:
        """The current model, those used last, those in the folders, Ollama's, and at last the demo."""
        recent = [path for path in self._recent if is_regular(path)]
        first = [Path(path) for path in [self._current, *recent] if path]
        demo = _demo()
        seen = {demo.path.resolve()}
        ollama = ollama_models(os.environ, self._home)
        files = gguf_files(self._folders, lambda: not self.is_attached)
        for path in chain(first, files, ollama):
            real = path.resolve()
            if real not in seen:
                seen.add(real)
                yield describe_file(path, ollama.get(path, ""))
        yield demo

    def _show_found(self) -> None:
        if self._target is None:
            self._show_targets()

    # -- the target

    def _show_targets(self) -> None:
        wanted = self.query_one(Input).value.lower().split()
        models = [m for m in self._found if m.is_target or m.problem]
        models = [m for m in models if all(word in f"{m.path} {m.name} {m.title}".lower() for word in wanted)]
        self._shown = sorted(models, key=self._rank)
        options = self.query_one(OptionList)
        at = options.highlighted
        width = max(30, options.scrollable_content_region.width)
        names = distinct_names(self._found)
        options.set_options([Option(self._target_row(m, names[m.path], width)) for m in self._shown])
        if self._shown:
            options.highlighted = at if at is not None and at < len(self._shown) else 0
        self._show_target_detail()

    def _rank(self, model: FoundModel) -> tuple[int, int, str]:
        path = str(model.path)
        used = self._recent.index(path) if path in self._recent else len(self._recent)
        # The demo comes after the user's own models, since it is always there.
        usable = 2 if model.problem else 1 if model.name == DEMO else 0
        return usable, -1 if path == self._current else used, model.label.lower()

    def _target_row(self, model: FoundModel, name: str, width: int) -> Text:
        path = str(model.path)
        mark = "●" if path == self._current else "↺" if path in self._recent else " "
        if model.problem:
            return sided_row(mark, name, "cannot be used", width)
        right = f"{model.quantisation:<8.8} {shown_size(model.size):>8}"
        if width >= FULL_WIDTH:
            right = f"{model.architecture:<10.10} {right}"
        if model.kind == "nextn-embedded":
            right = f"NextN  {right}"
        return sided_row(mark, name, right, width)

    def _show_target_detail(self) -> None:
        detail = self.query_one(".model-detail", Static)
        at = self.query_one(OptionList).highlighted
        if at is not None and at < len(self._shown):
            model = self._shown[at]
            used = "in use · " if str(model.path) == self._current else ""
            said = f"{model.title} · {one_line(model.path)}" if model.title else model.problem
            # Folded instead of wrapped: a path has no blanks, so it would begin on a line of its own.
            detail.update(Text(f"{used}{said}", overflow="fold", no_wrap=False))
        elif not self._searched:
            detail.update("Searching…")
        else:
            places = ", ".join(str(folder) for folder, _ in self._folders)
            detail.update(f"No model here. Give a path above, or set model-folders. Searched: {places}")

    # -- what drafts for it

    @work(exclusive=True, group="pair", exit_on_error=False)
    async def _pair(self, target: Path) -> None:
        """Show what can draft for the target, or why the target cannot be used."""
        # Without the demo: it drafts for nothing here.
        found = [model for model in self._found if model.name != DEMO]
        try:
            choices = await asyncio.to_thread(_choices, target, found)
        except ModelFileError as error:
            self.query_one(".model-detail", Static).update(str(error))
            return
        self._target = target
        self._choices = sorted(choices, key=lambda choice: not choice.fits)
        self.retitle(f"What drafts for {target.name}")
        self.query_one(Input).display = False
        self._show_choices()
        options = self.query_one(OptionList)
        options.highlighted = self._best_choice()
        options.focus()

    def _best_choice(self) -> int:
        """The first with a trained drafter, else the first, which is none."""
        fitting = [i for i, choice in enumerate(self._choices) if choice.fits and choice.support]
        return fitting[0] if fitting else 0

    def _show_choices(self) -> None:
        options = self.query_one(OptionList)
        at = options.highlighted
        width = max(30, options.scrollable_content_region.width)
        options.set_options(
            [
                Option(sided_row("✓" if c.fits else "✗", c.label, "" if c.fits else "does not fit", width))
                for c in self._choices
            ]
        )
        options.highlighted = at if at is not None and at < len(self._choices) else 0
        self._show_choice_detail()

    def _show_choice_detail(self) -> None:
        at = self.query_one(OptionList).highlighted
        if at is not None and at < len(self._choices):
            choice = self._choices[at]
            where = f"{one_line(choice.support)}\n" if choice.support not in ("", "embedded") else ""
            self.query_one(".model-detail", Static).update(where + choice.note)
        self.show_hint(SUPPORT_HINT.format("on" if self._lookup_first else "off"))

    # -- what the user does

    @on(Input.Changed, "#model-filter")
    def filter_targets(self) -> None:
        """Show the models whose path has every word."""
        self._show_targets()

    @on(Input.Submitted, "#model-filter")
    @work(exclusive=True, group="typed", exit_on_error=False)
    async def choose_typed(self, event: Input.Submitted) -> None:
        """Choose the file whose path was typed; if there is none, the text is a filter, and the highlighted
        model is chosen."""
        path = user_path(event.value.strip()).absolute()
        if await asyncio.to_thread(is_regular, path):
            self._pair(path)
        else:
            self._choose_highlighted()

    @on(OptionList.OptionHighlighted)
    def show_detail(self) -> None:
        """Show the details of the highlighted row."""
        if self._target is None:
            self._show_target_detail()
        else:
            self._show_choice_detail()

    @on(OptionList.OptionSelected)
    def choose_selected(self) -> None:
        """Choose the row."""
        self._choose_highlighted()

    def _choose_highlighted(self) -> None:
        at = self.query_one(OptionList).highlighted
        if at is None:
            return
        if self._target is None:
            if at < len(self._shown) and not self._shown[at].problem:
                self._choose_target(self._shown[at])
        elif self._choices[at].fits:
            choice = self._choices[at]
            chosen = ModelChosen(str(self._target), choice.support, choice.lookup or self._lookup_first)
            self.app.post_message(chosen)
            self.dismiss(chosen)

    def _choose_target(self, model: FoundModel) -> None:
        if model.name == DEMO:
            self.app.post_message(DemoChosen())
            self.dismiss(None)
        else:
            self._pair(model.path)

    def action_toggle_lookup(self) -> None:
        """Try drafts from the conversation before the support model, or not."""
        if self._target is not None:
            self._lookup_first = not self._lookup_first
            self._show_choice_detail()

    def action_get(self, wanted: str = "") -> None:
        """Get a model from the Hugging Face hub, and pair it."""
        from ds4chat.tui.models.get_screen import GetModel

        if self._target is None:
            self.app.push_screen(GetModel(wanted), self._choose_fetched)

    def _choose_fetched(self, path: Path | None) -> None:
        if path is not None:
            self._pair(path)

    def action_close(self) -> None:
        """Go back from the support models to the targets, and from there to the chat."""
        if self._target is None:
            self.dismiss(None)
            return
        self._target = None
        self.retitle(self.TITLE_TEXT)
        self.show_hint(TARGET_HINT)
        field = self.query_one(Input)
        field.display = True
        self.set_focus(field)
        self._show_targets()

    def on_key(self, event: events.Key) -> None:
        """The arrow keys move in the list while the filter has the focus."""
        options = self.query_one(OptionList)
        if self.focused is not options and event.key in ("up", "down", "pageup", "pagedown"):
            moves: dict[str, Callable[[], object]] = {
                "up": options.action_cursor_up,
                "down": options.action_cursor_down,
                "pageup": options.action_page_up,
                "pagedown": options.action_page_down,
            }
            moves[event.key]()
            event.stop()

    def on_resize(self) -> None:
        """The rows fill the width."""
        if self._target is None:
            self._show_targets()
        else:
            self._show_choices()


def _demo() -> FoundModel:
    """The demo as a row: its model, or why it cannot be taken."""
    try:
        return describe_file(demo_model(), DEMO)
    except ModelFileError as error:
        return FoundModel(Path(DEMO), 0, problem=str(error), name=DEMO)


def _choices(target: Path, found: Sequence[FoundModel]) -> list[SupportChoice]:
    """What can draft for a target, among the files found and those in its folder. Raises ModelFileError."""
    known = {model.path for model in found}
    beside = [path for path in gguf_files([(target.parent, 0)]) if path not in known]
    return list(support_choices(target, [*found, *map(describe_file, beside)]))
