"""A finished answer as rendered Markdown: rows of styled text for the transcript.

Links show their address instead of being links, HTML shows as it is written, and images are their text: a
model's answer never makes the terminal fetch or open anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from markdown_it import MarkdownIt
from pygments.token import Comment, Error, Generic, Keyword, Name, Number, Operator, String  # type: ignore[import-untyped]
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, HorizontalRule, Markdown, MarkdownElement
from rich.rule import Rule
from rich.segment import Segment
from rich.style import Style
from rich.syntax import ANSISyntaxTheme, Syntax
from rich.text import Text
from rich.theme import Theme

from ds4chat.tui.transcript.flow import Flow

if TYPE_CHECKING:
    from ds4chat.tui.transcript.blocks import Row

LONGEST = 400_000
"""Characters. A longer answer is shown as plain text: rendering it would hold the screen up."""

STYLES = {
    "h1": "heading",
    "h2": "heading",
    "h3": "heading",
    "h4": "heading",
    "h5": "heading",
    "h6": "heading",
    "code": "code",
    "block_quote": "quote",
    "item.bullet": "bullet",
    "item.number": "bullet",
    "hr": "rule",
    "link": "link",
    "link_url": "url",
    "table.header": "heading",
    "table.border": "rule",
    "em": "em",
    "strong": "strong",
    "s": "strike",
}
"""Rich's style names after ``markdown.`` -> the part after ``transcript--md-`` of a component class."""

CODE_STYLES: dict[tuple[str, ...], str] = {
    tuple(Comment): "comment",
    tuple(Keyword): "keyword",
    tuple(Name.Builtin): "keyword",
    tuple(Name.Function): "name",
    tuple(Name.Class): "name",
    tuple(Name.Tag): "name",
    tuple(Name.Decorator): "name",
    tuple(Number): "literal",
    tuple(String): "literal",
    tuple(Operator): "code-block",
    tuple(Generic.Inserted): "literal",
    tuple(Generic.Deleted): "keyword",
    tuple(Error): "code-block",
}


class _Heading(Heading):
    """Left-aligned, on one line, its level shown by the marks that Markdown has for it."""

    new_line = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        marks = "#" * int(self.tag[1:]) + " " if self.tag[1:].isdigit() else ""
        style = console.get_style(f"markdown.{self.tag}", default="bold")
        yield Text(marks + self.text.plain, style=style, overflow="fold")


class _Rule(HorizontalRule):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Rule(style=console.get_style("markdown.hr", default="none"), characters="─")


class _CodeBlock(CodeBlock):
    """Code on its own ground, with a bar at the left; long lines fold."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        ground = console.get_style("markdown.code_block", default="none")
        bar = console.get_style("markdown.hr", default="none")
        code = str(self.text).rstrip("\n")
        syntax = Syntax(code, self.lexer_name, theme=self.theme)
        text = syntax.highlight(code)
        text.rstrip()
        text.overflow = "fold"
        inner = options.update(width=max(1, options.max_width - 2))
        for line in console.render_lines(text, inner, style=ground, pad=True):
            yield Segment("▏ ", bar + Style(bgcolor=ground.bgcolor))
            yield from line
            yield Segment.line()


class _Answer(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "hr": _Rule,
        "fence": _CodeBlock,
        "code_block": _CodeBlock,
    }

    def __init__(self, text: str, theme: Any) -> None:
        super().__init__("", code_theme=theme, hyperlinks=False)
        parser = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")
        self.markup = text
        self.parsed = parser.parse(text)


def markdown_rows(text: str, width: int, styles: Mapping[str, Style]) -> Sequence[Row]:
    """The rows of a Markdown text, ``width`` cells wide at most. ``styles`` has a style for each of MD_ROLES.

    ``text`` must have passed ds4chat.text.drawn. What cannot be rendered comes back as plain wrapped text.
    """
    if len(text) > LONGEST or width < 4:
        return _plain_rows(text, width)
    code = {key: styles[role] for key, role in CODE_STYLES.items()}
    theme = ANSISyntaxTheme({(): styles["code-block"], **code})
    named = {f"markdown.{name}": styles[role] for name, role in STYLES.items()}
    named["markdown.code_block"] = styles["code-block"]
    console = Console(
        width=width,
        color_system="truecolor",
        force_terminal=True,
        legacy_windows=False,
        theme=Theme(named, inherit=True),
        _environ={},
    )
    try:
        lines = console.render_lines(_Answer(text, theme), console.options, pad=False)
    except Exception:  # noqa: BLE001  the text is a model's: whatever it breaks in the renderer, it is shown
        return _plain_rows(text, width)
    rows = [tuple((s.text, s.style or Style.null()) for s in line if not s.control) for line in lines]
    while rows and not "".join(text for text, _ in rows[-1]).strip():
        rows.pop()
    return rows


def _plain_rows(text: str, width: int) -> Sequence[Row]:
    flow = Flow(width)
    flow.append_all([(text, 0)])
    return [((flow.row_text(i), "plain"),) for i in range(flow.height)]
