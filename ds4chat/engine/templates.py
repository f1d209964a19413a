"""Chat templates: the Jinja program in a model's file or in one of the user's, or one of llama.cpp's own.

A template is a program that came with a downloaded file, and it runs in this process. A sandbox keeps it from
everything but the conversation, and its output, memory, processor time and depth are limited: to exceed a
limit is a TemplateError. An operation inside the interpreter that no limit reaches ends the process instead,
after BACKSTOP_SECONDS.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import chain
from typing import Any, NoReturn, Protocol

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from ds4chat.engine.llama import LlamaError, apply_builtin_template

MAX_MEMORY = 512 << 20
"""Bytes that rendering may allocate: many times what a conversation needs."""
MAX_OUTPUT = 16 << 20
"""Characters of a prompt beyond those of its conversation: more than any context holds."""
MAX_ITEMS = 1 << 18
"""Elements of a nested list, counted as often as they would be printed or compared."""
TEMPLATE_SECONDS = 5.0
"""Processor time of one rendering."""
BACKSTOP_SECONDS = 60.0
"""Time after which the process ends, where an operation inside the interpreter handles no signal."""
_TICK_SECONDS = 0.1
_ERROR_LENGTH = 200

Turn = Mapping[str, Any]
"""A message as templates read it: ``role``, ``content`` (a text, or a list of typed parts), and more."""


class TemplateError(Exception):
    """A template failed; the text says why. ``retry``: another form of the conversation may still work."""

    def __init__(self, why: str, *, retry: bool = False) -> None:
        super().__init__(why)
        self.retry = retry


class Template(Protocol):
    """Makes a prompt of a conversation."""

    source: str
    """The template's text; empty for one of llama.cpp's."""

    def render(self, messages: Sequence[Turn], variables: Mapping[str, Any], *, open_turn: bool) -> str:
        """The prompt's text; ``open_turn``: with the assistant's turn opened. Raises TemplateError."""


class BuiltinTemplate:
    """One of llama.cpp's own layouts, for contents as text only."""

    source = ""

    def __init__(self, name: str) -> None:
        self._name = name

    def render(self, messages: Sequence[Turn], variables: Mapping[str, Any], *, open_turn: bool) -> str:
        """The prompt's text; variables have no effect. Raises TemplateError."""
        if not all(isinstance(message["content"], str) for message in messages):
            raise TemplateError("it takes contents as text only", retry=True)
        turns = [(message["role"], message["content"]) for message in messages]
        try:
            return apply_builtin_template(self._name, turns, open_turn=open_turn)
        except LlamaError as error:
            raise TemplateError(str(error), retry=True) from None


class JinjaTemplate:
    """A template in Jinja. Raises TemplateError where it cannot be compiled."""

    def __init__(self, source: str) -> None:
        self.source = source
        # As transformers renders chat templates, for which they are written.
        environment = _Environment(
            undefined=_Missing, trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.tests["none"] = lambda value: value is None or isinstance(value, _Missing)
        environment.globals.update(raise_exception=_raise, strftime_now=_now, dict=_dict)
        with _guarded():
            self._template = environment.from_string(source)

    def render(self, messages: Sequence[Turn], variables: Mapping[str, Any], *, open_turn: bool) -> str:
        """The prompt's text. Raises TemplateError."""
        now = datetime.now()
        room = MAX_OUTPUT + sum(_length(message) for message in messages)
        parts: list[str] = []
        with _guarded():
            for part in self._template.generate(
                messages=[_Message(message) for message in messages],
                add_generation_prompt=open_turn,
                # What llama.cpp gives templates besides the conversation.
                date_string=now.strftime("%d %b %Y"),
                datetime=now.strftime("%b %d %Y"),
                **variables,
            ):
                room -= len(part)
                if room < 0:
                    raise _Refused(f"it writes {MAX_OUTPUT:,} characters more than the conversation has")
                parts.append(part)
        return "".join(parts)


# ---------------------------------------------------------------------------------------- the language


class _Refused(Exception):
    """The template asked for more than it may."""


class _Generation(Extension):
    """``{% generation %}``, which marks text for training, lets its body through."""

    tags = {"generation"}  # noqa: RUF012  the base class has it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        parser.stream.skip(1)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Missing(jinja2.Undefined):
    """A variable without a value. Added to a text it is empty, as some templates expect. It counts as none:
    other programs give templates ``tools`` and ``documents`` as none where there are none."""

    __hash__ = jinja2.Undefined.__hash__

    def __eq__(self, other: object) -> bool:
        return other is None or super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __add__(self, other: Any) -> Any:
        return other if isinstance(other, str) else super().__add__(other)

    def __radd__(self, other: Any) -> Any:
        return other if isinstance(other, str) else super().__radd__(other)


class _Message(dict[str, Any], Namespace):
    """A message whose attributes a template may set, as in llama.cpp."""

    __getattribute__ = dict.__getattribute__
    __setitem__ = dict.__setitem__


class _Environment(ImmutableSandboxedEnvironment):
    """What a template can use. An unsafe attribute is an error; the base class would print an empty text."""

    intercepted_binops = frozenset({"*"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """The product; repeating a text or a list beyond what a prompt holds is refused."""
        for value, times in ((left, right), (right, left)):
            if hasattr(value, "__len__") and isinstance(times, int) and len(value) * times > MAX_OUTPUT:
                raise _Refused(f"it repeats a text or a list {times:,} times")
        return super().call_binop(context, operator, left, right)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        raise SecurityError(f"it reads the attribute {attribute!r} of a {type(obj).__name__}")

    def bounded(self, value: Any) -> Any:
        """``value``, a list, tuple or dictionary that the template made, unless it nests too much."""
        return _bounded(value)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Bounds().visit(super()._parse(source, name, filename))
        return tree


class _Bounds(NodeTransformer):
    """Measures every collection that a template makes of variables: one that holds another twice, which holds
    another twice, and so on, is small in memory and endless to print or compare."""

    def visit_List(self, node: nodes.List | nodes.Tuple | nodes.Dict) -> nodes.Node:
        """The collection, inside a call of ``bounded``."""
        self.generic_visit(node)
        if getattr(node, "ctx", "load") != "load":
            return node
        try:
            node.as_const()
        except nodes.Impossible:
            call = nodes.EnvironmentAttribute("bounded", lineno=node.lineno)
            return nodes.Call(call, [node], [], None, None, lineno=node.lineno)
        return node

    visit_Tuple = visit_Dict = visit_List


def _bounded(value: Any) -> Any:
    left = MAX_ITEMS
    waiting = [iter((value,))]
    while waiting:
        for item in waiting[-1]:
            left -= 1
            if left < 0:
                raise _Refused(f"it nests lists to more than {MAX_ITEMS:,} elements")
            if isinstance(item, dict):
                waiting.append(chain(item.keys(), item.values()))
                break
            if isinstance(item, list | tuple):
                waiting.append(iter(item))
                break
        else:
            waiting.pop()
    return value


def _dict(*pairs: Any, **items: Any) -> Any:
    return _bounded(dict(*pairs, **items))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> NoReturn:
    raise ValueError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _length(message: Turn) -> int:
    content = message["content"]
    text = content if isinstance(content, str) else "".join(part["text"] for part in content)
    return len(text) + len(message.get("reasoning_content", ""))


# ---------------------------------------------------------------------------------------- the limits


_RETRIED = (jinja2.TemplateError, ValueError, TypeError, LookupError, AttributeError)
"""Errors that come of the conversation's form."""


class _TimeUp(BaseException):
    """The processor time is used up. Not an Exception, so that no filter catches it."""


@contextmanager
def _guarded() -> Iterator[None]:
    """Run a template under the limits. Raises TemplateError for anything that it raises or exceeds."""
    try:
        with _backstop(), _memory_limit(), _time_limit():
            yield
    except _TimeUp:
        raise TemplateError(f"it did not end within {TEMPLATE_SECONDS:g} seconds") from None
    except MemoryError:
        raise TemplateError(f"it takes more than {MAX_MEMORY >> 20} MiB of memory") from None
    except RecursionError:
        raise TemplateError("it calls itself without an end") from None
    except Exception as error:  # noqa: BLE001  a template is foreign code: it may raise anything
        reason = (str(error) or type(error).__name__).strip().split("\n")[0][:_ERROR_LENGTH]
        retry = isinstance(error, _RETRIED) and not isinstance(error, SecurityError)
        raise TemplateError(reason, retry=retry) from None


@contextmanager
def _backstop() -> Iterator[None]:
    """End the process, with a traceback on stderr, when the block takes longer than any limit allows."""
    faulthandler.dump_traceback_later(BACKSTOP_SECONDS, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextmanager
def _memory_limit() -> Iterator[None]:
    """MemoryError in the block when it allocates more than MAX_MEMORY, where the system can limit it."""
    try:
        import resource

        with open("/proc/self/statm", "rb") as file:
            now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        before = resource.getrlimit(resource.RLIMIT_AS)
        limit = now + MAX_MEMORY
        if any(bound != resource.RLIM_INFINITY and bound < limit for bound in before):
            limit = before[0]
        resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    except (ImportError, AttributeError, ValueError, OSError):
        yield
        return
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@contextmanager
def _time_limit() -> Iterator[None]:
    """_TimeUp in the block after TEMPLATE_SECONDS of processor time, on systems with such a timer and in the
    main thread, the only one to handle signals."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    running = True

    def end(_signal: int, _frame: object) -> None:
        if running:
            raise _TimeUp

    before = signal.signal(signal.SIGVTALRM, end)
    try:
        # It ticks again: what is raised inside a finaliser is lost.
        signal.setitimer(signal.ITIMER_VIRTUAL, TEMPLATE_SECONDS, _TICK_SECONDS)
        yield
        running = False
    finally:
        running = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
