"""A finished answer as rendered Markdown: rows of styled text for the transcript.

Links show their address instead of being links, HTML shows as it is written, and images are their text: a
model's answer never makes the terminal fetch or open anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any, ClassVar

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from pygments.token import Comment, Error, Generic, Keyword, Name, Number, Operator, String  # type: ignore[import-untyped]
from rich.cells import chop_cells
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, HorizontalRule, Markdown, MarkdownElement
from rich.rule import Rule
from rich.segment import Segment
from rich.style import Style
from rich.syntax import ANSISyntaxTheme, Syntax
from rich.text import Text
from rich.theme import Theme

from ds4chat.tui.transcript.flow import Flow
from ds4chat.tui.transcript.page import Page, Source

MOST_NESTED = 20
"""Lists and quotes within one another that are rendered; beyond that the answer is shown as plain text."""
NESTED_CELLS = 4
"""Most cells that each of them takes. rich shows nothing of what has no room left."""
LONGEST = 400_000
"""Characters. A longer answer is shown as plain text: rendering it would block the screen."""

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


CODE = "code"
"""Key of a style's meta data: what a row of code is, one of the next three."""
BEGIN, LINE, MORE = "begin", "line", "more"
"""The first row of a block; the first row of another line; a row that continues the line above."""


class _CodeBlock(CodeBlock):
    """Code on its own ground, with a bar at the left; long lines fold, wherever they reach the edge."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        ground = console.get_style("markdown.code_block", default="none")
        bar = console.get_style("markdown.hr", default="none")
        code = str(self.text).rstrip("\n")
        syntax = Syntax(code, self.lexer_name, theme=self.theme)
        text = syntax.highlight(code)
        text.rstrip()
        width = max(1, options.max_width - 2)
        inner = options.update(width=width)
        kind = BEGIN
        for whole in text.split("\n", allow_blank=True):
            cut, ends = 0, []
            for piece in chop_cells(whole.plain, width)[:-1]:
                cut += len(piece)
                ends.append(cut)
            for number, part in enumerate(whole.divide(ends)):
                part.no_wrap, part.end = True, ""
                yield Segment(
                    "▏ ", bar + Style(bgcolor=ground.bgcolor, meta={CODE: MORE if number else kind})
                )
                yield from console.render_lines(part, inner, style=ground, pad=True)[0]
                yield Segment.line()
            kind = LINE


class _Answer(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "hr": _Rule,
        "fence": _CodeBlock,
        "code_block": _CodeBlock,
    }

    def __init__(self, tokens: list[Token], theme: Any) -> None:
        super().__init__("", code_theme=theme, hyperlinks=False)
        self.parsed = tokens


def parsed(text: str) -> list[Token]:
    """A model's Markdown as tokens: CommonMark with tables, and mathematics left as it is written."""
    # The parser drops what is nested deeper; a list in a list counts twice.
    options = {"html": False, "maxNesting": 2 * MOST_NESTED + 2}
    parser = MarkdownIt("commonmark", options).enable("strikethrough").enable("table")
    parser.inline.ruler.before("escape", "math", _math)
    return parser.parse(text)


def _math(state: StateInline, silent: bool) -> bool:
    r"""Keep ``\(...\)`` and ``\[...\]`` whole, and the spaces ``\,`` ``\;`` ``\:`` ``\!`` outside of them."""
    mark = state.src[state.pos : state.pos + 2]
    close = {r"\(": r"\)", r"\[": r"\]"}.get(mark)
    if close is not None:
        found = state.src.find(close, state.pos + 2, state.posMax)
        stop = found + 2 if found >= 0 else state.pos + 2
    elif mark in (r"\)", r"\]", r"\,", r"\;", r"\:", r"\!"):
        stop = state.pos + 2
    else:
        return False
    if not silent:
        state.pending += state.src[state.pos : stop]
    state.pos = stop
    return True


def markdown_page(text: str, width: int, styles: Mapping[str, Style]) -> Page:
    """The rows of a Markdown text, ``width`` cells wide at most. ``styles`` has a style for each of MD_ROLES.

    ``text`` must have passed ds4chat.text.drawn. What cannot be rendered comes back as plain wrapped text.
    """
    if len(text) > LONGEST or width < 4:
        return _plain_page(text, width)
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
    page = Page()
    written = text.split("\n")
    try:
        found = parsed(text)
        if _nested(found) > min(MOST_NESTED, width // NESTED_CELLS - 1):
            return _plain_page(text, width)
        for tokens in _groups(found):
            lines = console.render_lines(_Answer(tokens, theme), console.options, pad=False)
            first = len(page.rows)
            for line in lines:
                _add_row(page, line)
            if tokens[0].map:
                start, stop = tokens[0].map
                page.sources[first] = Source(len(page.rows), "\n".join(written[start:stop]).rstrip("\n"))
            if tokens[0].type != "hr":
                page.rows.append(())
    except Exception:  # noqa: BLE001  the text is a model's: whatever it breaks in the renderer, it is shown
        return _plain_page(text, width)
    while page.rows and not "".join(text for text, _ in page.rows[-1]).strip():
        page.rows.pop()
    return page


def _nested(tokens: list[Token]) -> int:
    """How many lists and quotes are within one another at most."""
    steps = (token.nesting for token in tokens if token.type.startswith(("list_item", "blockquote")))
    return max(accumulate(steps), default=0)


def _groups(tokens: list[Token]) -> Iterator[list[Token]]:
    """The tokens of each outermost block."""
    group: list[Token] = []
    depth = 0
    for token in tokens:
        group.append(token)
        depth += token.nesting
        if depth == 0:
            yield group
            group = []


def _add_row(page: Page, line: list[Segment]) -> None:
    """Append a row, and note what of it is code."""
    at = len(page.rows)
    row: list[tuple[str, str | Style]] = []
    seen = 0
    for segment in line:
        if segment.control:
            continue
        style = segment.style or Style.null()
        seen += len(segment.text)
        if kind := style.meta.get(CODE):
            page.margins[at] = seen
            if kind == BEGIN:
                page.codes.append((at, at))
            else:
                page.codes[-1] = page.codes[-1][0], at
                page.joined |= {at - 1} if kind == MORE else set()
            style = style.clear_meta_and_links()
        row.append((segment.text, style))
    page.rows.append(tuple(row))


def _plain_page(text: str, width: int) -> Page:
    flow = Flow(width)
    flow.append((text, 0))
    return Page(
        [((flow.row_text(i), "plain"),) for i in range(flow.height)],
        joined={i for i in range(flow.height - 1) if flow.continues(i)},
    )
