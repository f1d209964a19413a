"""The process that renders a model's chat template, which is a program that came with a downloaded file.

A sandboxed environment keeps it from everything but the conversation. What no interpreter can interrupt (one
operation that takes an hour, a gigabyte or the whole stack) ends this process instead, which holds nothing.

On stdin and stdout a message is four bytes of big-endian length and a JSON object. The first request is
``{"template", "bos", "eos"}``, each later one ``{"messages", "switches"}``; the answer is ``{"text"}``, or
``{"error", "retry"}`` where another form of the conversation may still be rendered.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any, BinaryIO, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_MEMORY = 512 << 20
"""Bytes of address space of the process: many times what a conversation takes."""
MAX_OUTPUT = 16 << 20
"""Characters of a prompt beyond those of its conversation: more than any context holds."""
CPU_SECONDS = 10
"""Processor time of one request, for the case that nobody is left who would end the process."""
_LENGTH = struct.Struct(">I")
_ERROR_LENGTH = 200


class _Refused(Exception):
    """The template asked for more than it may."""


class _Generation(Extension):
    """``{% generation %}``, which marks text for training, lets its body through."""

    tags = {"generation"}  # noqa: RUF012  the base class has it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        parser.stream.skip(1)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """What a template sees; an unsafe attribute is an error, where the base class prints an empty text."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        raise SecurityError(f"it reads the attribute {attribute!r} of a {type(obj).__name__}")


class Renderer:
    """One template, compiled. Raises jinja2.TemplateError where it does not parse."""

    def __init__(self, template: str, bos: str, eos: str) -> None:
        # As transformers renders chat templates, for whom they are written.
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_raise, strftime_now=_now)
        self._template = environment.from_string(template)
        self._tokens = {"bos_token": bos, "eos_token": eos}

    def render(self, messages: list[dict[str, str]], switches: dict[str, Any]) -> str:
        """The prompt's text, the assistant's turn opened.

        Raises jinja2.TemplateError, _Refused for what the template may not do or is too much of, and
        whatever else its expressions raise.
        """
        room = MAX_OUTPUT + sum(len(message["content"]) for message in messages)
        parts: list[str] = []
        for part in self._template.generate(
            messages=messages,
            **dict.fromkeys(("functions", "function_call", "tools", "tool_choice")),
            **self._tokens,
            **{"add_generation_prompt": True, **switches},
        ):
            room -= len(part)
            if room < 0:
                raise _Refused(f"it writes {MAX_OUTPUT:,} characters more than the conversation has")
            parts.append(part)
        return "".join(parts)


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


def confine() -> None:
    """Take from this process what rendering does not need. Where the system knows no such limits, the
    sandbox and the time limit of whoever started it remain."""
    try:
        import resource
    except ImportError:
        return
    for limit, value in (
        ("RLIMIT_AS", MAX_MEMORY),
        ("RLIMIT_FSIZE", 0),
        ("RLIMIT_CORE", 0),
        ("RLIMIT_NPROC", 0),
    ):
        try:
            resource.setrlimit(getattr(resource, limit), (value, value))
        except (AttributeError, ValueError, OSError):
            continue


def _limit_time() -> None:
    """End this process by a signal when the request that begins now takes CPU_SECONDS."""
    try:
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + CPU_SECONDS, most))
    except (ImportError, ValueError, OSError):
        pass


def _answers(requests: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The answer to each request."""
    renderer: Renderer | None = None
    for request in requests:
        _limit_time()
        try:
            if renderer is None:
                renderer = Renderer(**request)
                text = ""
            else:
                text = renderer.render(**request)
        except MemoryError:
            yield {"error": f"it takes more than {MAX_MEMORY >> 20} MiB of memory", "retry": False}
        except RecursionError:
            yield {"error": "it calls itself without an end", "retry": False}
        except Exception as error:  # noqa: BLE001  a template is foreign code: it may raise anything
            reason = (str(error) or type(error).__name__).strip().split("\n")[0][:_ERROR_LENGTH]
            own = isinstance(error, jinja2.TemplateError | ValueError) and not isinstance(
                error, SecurityError
            )
            yield {"error": reason, "retry": own}
        else:
            yield {"text": text}


def read(stream: BinaryIO) -> dict[str, Any] | None:
    """The next message; None at the end of the stream."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    body = stream.read(length)
    if len(body) < length:
        return None
    message: dict[str, Any] = json.loads(body)
    return message


def write(stream: BinaryIO, message: dict[str, Any]) -> None:
    """Send one message. Raises OSError when nobody is there."""
    # ASCII, since the text of a damaged conversation may hold what UTF-8 cannot say.
    body = json.dumps(message).encode("ascii")
    stream.write(_LENGTH.pack(len(body)) + body)
    stream.flush()


def main() -> None:
    """Entry of the process: answers until stdin ends."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    confine()
    write(answers, {})
    for answer in _answers(iter(lambda: read(requests), None)):
        write(answers, answer)


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        main()
    os._exit(0)  # nothing is left to flush, and nobody to read it
