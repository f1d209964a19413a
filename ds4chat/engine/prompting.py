"""From messages to prompt tokens, through the target's chat template or a plain layout without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ds4chat.engine.events import Generate, Message
from ds4chat.engine.llama import Model
from ds4chat.engine.templates import RendererError, TemplateError, TemplateProcess
from ds4chat.engine.thinking import (
    ReplyFormat,
    declared_by_template,
    switches,
    system_switch,
    turn_marks,
    turns_of,
)


class PromptError(Exception):
    """The conversation cannot be made a prompt; the text is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens to decode, strings that end the reply beside the end tokens, and how the reply is read."""

    tokens: list[int]
    stop: tuple[str, ...]
    format: ReplyFormat
    thinking: str = ""
    """The mark that opened a thought at the prompt's end; empty where none did."""


class Prompter:
    """Renders conversations for one model. ``templates``: a process that was started before, to be ready by
    now; close() ends it."""

    def __init__(self, model: Model, templates: TemplateProcess | None = None) -> None:
        self._model = model
        self._templates: TemplateProcess | None = templates or TemplateProcess()
        self.note = ""
        """A sentence when the chat template is missing or broken."""
        self._answers = True
        """Example conversations do not end the process that renders."""
        self._special = model.special_tokens()
        self._template = template = model.chat_template
        if not template:
            self.note = (
                "The model has no chat template, so the conversation is written as 'User:' and "
                "'Assistant:' lines. It may be a base model: look for an instruct version to chat with."
            )
            self.close()
            return
        try:
            self._templates.open(template, model.bos, model.eos)
        except RendererError as error:
            self.note = (
                f"{_no_renderer(error)}, so the conversation is written as 'User:' and 'Assistant:' lines. "
                f"Its replies may be the worse for it: {_MEND_RENDERER}"
            )
            self.close()
        except TemplateError as error:
            self.note = (
                f"The model's chat template cannot be used ({_short(error)}), so the conversation is "
                "written as 'User:' and 'Assistant:' lines. Its replies may be the worse for it: get a newer "
                "file of the model, which most often has a mended template, or choose another model."
            )
            self.close()

    def close(self) -> None:
        """End the process that renders; conversations become plain lines from then on."""
        if self._templates is not None:
            self._templates.close()
            self._templates = None

    def of(self, request: Generate) -> Prompt:
        """Tokens of a request: its raw prompt, or its messages. Raises PromptError, LlamaError."""
        if request.prompt is not None:
            return self.raw(request.prompt)
        return self.chat(request.messages, think=request.think)

    def chat(self, messages: Sequence[Message], *, think: bool) -> Prompt:
        """Tokens of a conversation with the assistant's turn opened. Raises PromptError."""
        if self._templates is None:
            lines = [f"{m.role.capitalize()}: {m.content}\n" for m in messages]
            text = "".join(lines) + "Assistant:"
            return Prompt(
                self._model.tokenize(text, add_special=True, parse_special=False),
                ("\nUser:",),
                self._raw_format,
            )
        text = self._render(messages, think)
        bos = self._model.bos
        tokens = self._model.tokenize(
            text, add_special=not (bos and text.startswith(bos)), parse_special=True
        )
        return Prompt(tokens, (), self._format, self._format.opened_by(text))

    def raw(self, text: str) -> Prompt:
        """Tokens of a text as it stands, special tokens recognised in it."""
        tokens = self._model.tokenize(text, add_special=True, parse_special=True)
        return Prompt(tokens, (), self._raw_format, self._raw_format.opened_by(text))

    @cached_property
    def _raw_format(self) -> ReplyFormat:
        return ReplyFormat(self._special, self._hidden)

    @cached_property
    def _format(self) -> ReplyFormat:
        """Asked after a conversation was rendered: a template that never ends is then not asked at all."""
        declared = declared_by_template(self._example, self._template)
        turns = turn_marks(self._example)
        return ReplyFormat(self._special, self._hidden, declared=declared, turns=turns)

    @property
    def _hidden(self) -> set[int]:
        return {token for token in self._special.values() if not self._model.piece(token)}

    @cached_property
    def _words(self) -> tuple[str, str]:
        return system_switch(self._template, self._example)

    def _example(self, messages: list[dict[str, str]], *, think: bool, **more: Any) -> str:
        if self._templates is None or not self._answers:
            raise TemplateError("it is not asked")
        try:
            return self._templates.render(messages, switches(self._template, think) | more)
        except TemplateError as error:
            self._answers = error.retry
            raise

    def _render(self, messages: Sequence[Message], think: bool) -> str:
        assert self._templates is not None
        turns = turns_of(messages, self._words[think])
        variables = switches(self._template, think)
        try:
            try:
                return self._templates.render(turns, variables)
            except TemplateError as error:
                if not error.retry or len(turns) < 2 or turns[0]["role"] != "system":
                    raise
            # Some templates refuse a system turn: its text then opens the first user turn.
            merged = {"role": "user", "content": f"{turns[0]['content']}\n\n{turns[1]['content']}"}
            return self._templates.render([merged, *turns[2:]], variables)
        except RendererError as error:
            raise PromptError(f"{_no_renderer(error)}: {_MEND_RENDERER}") from None
        except TemplateError as error:
            raise PromptError(
                f"The model's chat template failed on this conversation: {_short(error)}. "
                "Choose another model; for one prompt without the template there is ds4chat --raw -p TEXT."
            ) from None


_MEND_RENDERER = "free memory or processes, let this user run Python, and start ds4chat again."


def _no_renderer(error: RendererError) -> str:
    return f"The process that renders the model's chat template did not start ({_short(error)})"


def _short(error: TemplateError) -> str:
    return str(error).rstrip(".")
