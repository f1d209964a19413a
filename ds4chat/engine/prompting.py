"""From messages to prompt tokens, through the target's chat template or a plain layout without one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jinja2

from ds4chat.engine.events import Generate, Message
from ds4chat.engine.llama import Model, chat_formatter
from ds4chat.engine.text import opens_thinking

TEMPLATE_SECONDS = 5.0
"""Longest time that a chat template may take: it is a program that came with a downloaded file."""


class PromptError(Exception):
    """The conversation cannot be made a prompt; the text is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens to decode, strings that end the reply beside the end tokens, and where thinking stands."""

    tokens: list[int]
    stop: tuple[str, ...]
    thinking: bool


class Prompter:
    """Renders conversations for one model."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._format: Callable[..., Any] | None = None
        self.note = ""
        """A sentence when the chat template is missing or broken."""
        template = model.chat_template
        if not template:
            self.note = (
                "The model has no chat template, so the conversation is written as 'User:' and "
                "'Assistant:' lines. It may be a base model: look for an instruct version to chat with."
            )
            return
        try:
            self._format = chat_formatter(template, model.bos, model.eos)
        except Exception as error:  # noqa: BLE001  a template is foreign code: it may raise anything
            self.note = (
                f"The model's chat template does not parse ({_short(error)}), so the conversation is "
                "written as 'User:' and 'Assistant:' lines."
            )

    def of(self, request: Generate) -> Prompt:
        """Tokens of a request: its raw prompt, or its messages. Raises PromptError, LlamaError."""
        if request.prompt is not None:
            return self.raw(request.prompt)
        return self.chat(request.messages, think=request.think)

    def chat(self, messages: Sequence[Message], *, think: bool) -> Prompt:
        """Tokens of a conversation with the assistant's turn opened. Raises PromptError."""
        if self._format is None:
            lines = [f"{m.role.capitalize()}: {m.content}\n" for m in messages]
            text = "".join(lines) + "Assistant:"
            return Prompt(
                self._model.tokenize(text, add_special=True, parse_special=False), ("\nUser:",), False
            )
        text = self._render(messages, think)
        bos = self._model.bos
        tokens = self._model.tokenize(
            text, add_special=not (bos and text.startswith(bos)), parse_special=True
        )
        return Prompt(tokens, (), opens_thinking(text))

    def raw(self, text: str) -> Prompt:
        """Tokens of a text as it stands, special tokens recognised in it."""
        return Prompt(
            self._model.tokenize(text, add_special=True, parse_special=True), (), opens_thinking(text)
        )

    def _render(self, messages: Sequence[Message], think: bool) -> str:
        assert self._format is not None
        turns = [{"role": m.role, "content": m.content} for m in messages]
        # Templates name the switch differently; those that know none ignore both.
        switches = {"enable_thinking": think, "thinking": think}
        try:
            with _time_limit(TEMPLATE_SECONDS):
                try:
                    return str(self._format(messages=turns, **switches).prompt)
                except (jinja2.TemplateError, ValueError):
                    if turns[0]["role"] != "system" or len(turns) < 2:
                        raise
                # Some templates refuse a system turn: its text then opens the first user turn.
                merged = {"role": "user", "content": f"{turns[0]['content']}\n\n{turns[1]['content']}"}
                return str(self._format(messages=[merged, *turns[2:]], **switches).prompt)
        except Exception as error:  # noqa: BLE001  a template is foreign code: it may raise anything
            raise PromptError(
                f"The model's chat template failed on this conversation: {_short(error)}. "
                "Use --raw for a prompt without the template."
            ) from None


def _short(error: Exception) -> str:
    return (str(error) or type(error).__name__).strip().rstrip(".").split("\n")[0][:200]


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError after this long. Only the main thread of a system with SIGALRM can be
    interrupted; elsewhere there is no limit, and the client's watchdog is what remains."""
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_signal: int, _frame: object) -> None:
        raise TimeoutError(f"it did not end within {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
