"""From messages to prompt tokens, through a chat template or a plain layout without one.

A template gets the conversation in a form that it accepts. Tried in turn: as it is; with the system prompt
inside the first user turn; with successive turns of one role joined, such as one that was never answered and
the next, and an empty turn of the user before a first one of the assistant; each with contents as text and as
lists of typed parts. The first form is used that the template accepts with every message in the prompt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ds4chat.engine.events import Ended, Generate, Message, refused
from ds4chat.engine.llama import Model, TooLongError, builtin_templates
from ds4chat.engine.reply_text import ReplyFormat
from ds4chat.engine.templates import BuiltinTemplate, JinjaTemplate, Template, TemplateError, Turn
from ds4chat.engine.thinking import (
    TAGS,
    declared_by_template,
    switches,
    system_switch,
    turn_marks,
    turn_of,
    with_word,
)
from ds4chat.engine.user_text import Finder, Marks, TextRange, forbidden_tokens, names_of, tokenize
from ds4chat.models.errors import ModelFileError
from ds4chat.text import one_line, shortened

MAX_TEMPLATE_BYTES = 1 << 20

_PLAIN_LINES = "so the conversation is written as 'User:' and 'Assistant:' lines"
_OTHER_TEMPLATE = "another template with --chat-template FILE or NAME, or none with --no-template"


class PromptError(Exception):
    """No prompt can be made of the conversation; the text is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens to decode, strings that end the reply besides the end tokens, and how to read the reply."""

    tokens: list[int]
    format: ReplyFormat
    stop: tuple[str, ...] = ()
    thinking: str = ""
    """The mark that opens a thought at the prompt's end; empty where none does."""
    notes: tuple[str, ...] = ()
    """Sentences for the user, each only once for a model."""
    form: str = ""
    """The form in which the template got the conversation, in words; empty without a template."""


class Prompter:
    """Renders conversations for one model.

    template: one to use instead of the model's own. use_template: False for the plain layout.
    """

    def __init__(self, model: Model, template: Template | None = None, *, use_template: bool = True) -> None:
        self._model = model
        names = names_of(model.special_tokens)
        self._specials = Finder(names)
        self._names = Finder([*names, *TAGS])
        self._told: set[str] = set()
        """Notes that were given."""
        self._shows_examples = True
        """The template may be asked for examples: none has exceeded a limit so far."""
        self.note = ""
        """A sentence when the model's chat template is missing or broken."""
        self._template = (template or self._own_template()) if use_template else None
        source = self._source = self._template.source if self._template else ""
        self._structural = {source[start:end] for start, end in self._specials.spans(source)}

    def _own_template(self) -> Template | None:
        """The model's template; None where it has none that can be used, as ``note`` says."""
        if not self._model.chat_template:
            self.note = (
                f"The model has no chat template, {_PLAIN_LINES}. It may be a base model: look for an "
                "instruct version to chat with, or name a template with --chat-template FILE or NAME."
            )
            return None
        try:
            return JinjaTemplate(self._model.chat_template)
        except TemplateError as error:
            self.note = (
                f"The model's chat template cannot be used ({_short(error)}), {_PLAIN_LINES}. Its replies "
                "may be the worse for it: name another template with --chat-template FILE or NAME, or get a "
                "newer file of the model."
            )
            return None

    def of(self, request: Generate) -> Prompt:
        """The prompt of a request, raw or of its messages, with one token at least and room for another.
        Raises PromptError, LlamaError."""
        if request.prompt is not None:
            prompt = self.raw(request.prompt)
        else:
            prompt = self.chat(request.messages, think=request.think)
        if not prompt.tokens:
            raise PromptError("The prompt is empty. Write something to answer.")
        if len(prompt.tokens) >= self._model.room > 0:
            raise TooLongError(f"{len(prompt.tokens):,}", self._model.room)
        return prompt

    def chat(self, messages: Sequence[Message], *, think: bool) -> Prompt:
        """The prompt of a conversation, with the assistant's turn opened, or left open where the last turn is
        the assistant's. Raises PromptError, LlamaError."""
        if self._template is None:
            return self._lines(messages)
        messages = with_word(messages, self._words[think])
        if messages and messages[-1].role == "assistant" and not messages[-1].content.strip():
            messages = messages[:-1]
        continues = bool(messages) and messages[-1].role == "assistant"
        rendering = _Rendering(self._template, messages, self._names, self._variables(think), continues)
        text, own = rendering.marked()
        forbidden = self._forbidden(text, own)
        if not (continues or rendering.holds_names or forbidden):
            # Marks may change what a template makes of a text's ends.
            text = rendering.plain()
        return Prompt(
            self._with_first(tokenize(self._model, text, own, forbidden)),
            self._format,
            thinking=self._format.opened_by(text),
            notes=self._notes(forbidden.values(), rendering.left_out),
            form=rendering.form,
        )

    def _variables(self, think: bool) -> dict[str, Any]:
        tokens = {"bos_token": self._model.bos, "eos_token": self._model.eos}
        return {**tokens, **switches(self._source, think)}

    def _forbidden(self, text: str, own: Sequence[TextRange]) -> dict[int, str]:
        return forbidden_tokens(self._model.special_tokens, self._specials, text, own, self._structural)

    def raw(self, text: str) -> Prompt:
        """The prompt of a text as it is, with special tokens recognised in it."""
        tokens = self._model.tokenize(text, add_special=False, parse_special=True)
        return Prompt(self._with_first(tokens), self._raw_format, thinking=self._raw_format.opened_by(text))

    @cached_property
    def _raw_format(self) -> ReplyFormat:
        return self._reply_format()

    @cached_property
    def _format(self) -> ReplyFormat:
        """Needed after a conversation was rendered, so a template that never ends is not asked for
        examples."""
        declared = declared_by_template(self._example, self._source)
        return self._reply_format(declared=declared, turns=turn_marks(self._example))

    def _reply_format(self, **declared: Any) -> ReplyFormat:
        special = {special.text: special.id for special in self._model.special_tokens}
        hidden = {token for token in special.values() if not self._model.piece(token)}
        return ReplyFormat(special, hidden, **declared)

    @cached_property
    def _words(self) -> tuple[str, str]:
        """What the system prompt says to have the model not think, and think."""
        return system_switch(self._source, self._example)

    def _example(
        self, messages: list[dict[str, str]], *, think: bool, add_generation_prompt: bool = True
    ) -> str:
        """An example conversation rendered, with contents as text or, where that loses one, as typed parts.
        Raises TemplateError."""
        if self._template is None or not self._shows_examples:
            raise TemplateError("it is not asked")
        variables = self._variables(think)
        rendered = ""
        try:
            for form in (messages, _typed(messages)):
                rendered = self._template.render(form, variables, open_turn=add_generation_prompt)
                if all(message["content"] in rendered for message in messages):
                    break
        except TemplateError as error:
            self._shows_examples = error.retry
            raise
        return rendered

    def _lines(self, messages: Sequence[Message]) -> Prompt:
        lines = [f"{m.role.capitalize()}: {m.content}" for m in messages]
        if not messages or messages[-1].role != "assistant":
            lines.append("Assistant:")
        text = "\n".join(lines)
        own = [(0, len(text))]
        forbidden = self._forbidden(text, own)
        tokens = self._with_first(tokenize(self._model, text, own, forbidden))
        notes = self._notes(forbidden.values(), "")
        return Prompt(tokens, self._raw_format, stop=("\nUser:",), notes=notes)

    def _with_first(self, tokens: list[int]) -> list[int]:
        """The tokens after the one that the vocabulary wants at the beginning, once. The one that it wants at
        the end is left out, since it would close the turn that the model is to write."""
        first = self._model.first_token
        return tokens if first is None or not tokens or tokens[0] == first else [first, *tokens]

    def _notes(self, disarmed: Collection[str], left_out: str) -> tuple[str, ...]:
        """The notes on a prompt that were not given before."""
        notes = {}
        if disarmed:
            notes["disarmed"] = (
                f"The conversation's text holds {shortened(', '.join(disarmed))}: the model gets that as "
                "text, not as the token of this name, so that it cannot end or begin a turn."
            )
        if left_out:
            notes[left_out] = left_out
        new = [note for key, note in notes.items() if key not in self._told]
        self._told.update(notes)
        return tuple(new)


class _Rendering:
    """A conversation rendered by a template."""

    def __init__(
        self,
        template: Template,
        messages: Sequence[Message],
        names: Finder,
        variables: Mapping[str, Any],
        continues: bool,
    ) -> None:
        self._template = template
        self._messages = messages
        self._continues = continues
        self._variables = variables
        texts = [text for message in messages for text in (message.content, message.thinking)]
        try:
            self._marks = Marks(texts, names)
        except ValueError:
            raise PromptError(
                "The conversation holds every private-use character there is, so its texts cannot be told "
                "from the chat template's. Take that text out (/undo), or go on without a template "
                "(--no-template)."
            ) from None
        self.holds_names = any(next(names.spans(text), None) for text in texts)
        """A text holds the name of a special token or a thinking tag."""
        self.form = ""
        """The name of the form that the template accepted."""
        self.left_out = ""
        """A sentence on the messages that the template leaves out of the prompt."""

    def marked(self) -> tuple[str, list[TextRange]]:
        """The prompt's text, in the first form with every message in it, and the parts of it that are the
        messages' own. Raises PromptError."""
        marks, source = self._marks, self._template.source
        turns = [
            turn_of(
                message.role,
                marks.mark(2 * i, message.content),
                marks.mark(2 * i + 1, message.thinking),
                source,
            )
            for i, message in enumerate(self._messages)
        ]
        failure: TemplateError | None = None
        best: tuple[str, str] | None = None
        for name, form in _forms(turns).items():
            try:
                rendered = self._template.render(form, self._variables, open_turn=not self._continues)
            except TemplateError as error:
                failure = failure or error  # that of the conversation as it is tells most
                if not error.retry:
                    break
                continue
            missing = self._missing(rendered)
            if not missing:
                self.form = name
                return self._finished(rendered)
            if best is None and len(self._messages) - 1 not in missing:
                best = name, rendered
        if best is not None:
            self.form, rendered = best
            missing = self._missing(rendered)
            roles = sorted({self._messages[i].role for i in missing})
            self.left_out = (
                f"The chat template leaves out {' and '.join(roles)} turns before the last, "
                f"so the model does not see them: use {_OTHER_TEMPLATE}."
            )
            return self._finished(rendered)
        if failure is not None:
            raise _failed(failure)
        raise PromptError(
            "The chat template leaves out what was written last, so the model would not see it: use "
            f"{_OTHER_TEMPLATE}."
        )

    def plain(self) -> str:
        """The prompt's text in the form that marked() found, rendered without marks. Raises PromptError."""
        turns = [
            turn_of(message.role, message.content, message.thinking, self._template.source)
            for message in self._messages
        ]
        form = _forms(turns)[self.form]
        try:
            return self._template.render(form, self._variables, open_turn=True)
        except TemplateError as error:
            raise _failed(error) from None

    def _missing(self, rendered: str) -> list[int]:
        """Indices of the messages whose text is not in the prompt."""
        return [
            i
            for i, message in enumerate(self._messages)
            if message.content.strip()
            and not (self._marks.start(2 * i) in rendered and self._marks.end(2 * i) in rendered)
        ]

    def _finished(self, rendered: str) -> tuple[str, list[TextRange]]:
        if self._continues and self._messages[-1].content.strip():
            last = self._marks.end(2 * (len(self._messages) - 1))
            rendered = rendered[: rendered.rindex(last) + 1]
        return self._marks.remove(rendered)


def _failed(error: TemplateError) -> PromptError:
    return PromptError(
        f"The chat template failed on this conversation: {_short(error)}. Undo the last turn (/undo), "
        f"or use {_OTHER_TEMPLATE}."
    )


def _forms(turns: Sequence[Turn]) -> dict[str, list[Turn]]:
    """The conversation in every form that templates accept, by name, the likeliest first."""
    merged = _system_merged(turns)
    forms = {
        "as it is": list(turns),
        "system in the user's turn": merged,
        "turns joined": _joined(turns),
        "system in the user's turn, turns joined": _joined(merged),
    }
    found: dict[str, list[Turn]] = {}
    for name, form in forms.items():
        found[name] = form
        found[f"{name}, typed parts"] = _typed(form)
    return found


def _typed(turns: Sequence[Turn]) -> list[Turn]:
    """Turns with their contents as typed parts."""
    return [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in turns]


def _system_merged(turns: Sequence[Turn]) -> list[Turn]:
    """System turns inside the user's turn that follows, as llama.cpp does where a template has none."""
    merged: list[Turn] = []
    before = ""
    for turn in turns:
        if turn["role"] == "system":
            before += turn["content"] + "\n"
        elif turn["role"] == "user" and before:
            merged.append({**turn, "content": before + turn["content"]})
            before = ""
        else:
            merged.append(turn)
    if before:
        merged.append({"role": "user", "content": before.removesuffix("\n")})
    return merged


def _joined(turns: Sequence[Turn]) -> list[Turn]:
    """Successive turns of one role as one turn, and an empty user's turn before an assistant's that is the
    first."""
    joined: list[Turn] = []
    for turn in turns:
        if turn["role"] == "assistant" and all(before["role"] == "system" for before in joined):
            joined.append({"role": "user", "content": ""})
        if joined and joined[-1]["role"] == turn["role"]:
            joined[-1] = {**joined[-1], "content": f"{joined[-1]['content']}\n\n{turn['content']}"}
        else:
            joined.append(turn)
    return joined


def named_template(name: str) -> Template | None:
    """The template in a file, or the one that llama.cpp knows by this name; None for an empty name. Raises
    ModelFileError."""
    if not name:
        return None
    if name in builtin_templates():
        return BuiltinTemplate(name)
    try:
        with Path(name).open("rb") as file:
            raw = file.read(MAX_TEMPLATE_BYTES + 1)
        if len(raw) > MAX_TEMPLATE_BYTES:
            raise ModelFileError(
                f"The chat template {one_line(name)} is larger than a mebibyte, so it is something else: "
                "name a file with a Jinja template."
            )
        return JinjaTemplate(raw.decode("utf-8-sig"))
    except FileNotFoundError:
        raise ModelFileError(
            f"There is no chat template {one_line(name)}: name a file with a Jinja template, or one of "
            f"{', '.join(builtin_templates())}."
        ) from None
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ModelFileError(
            f"The chat template {one_line(name)} cannot be read: {shortened(reason)}. Change that, or name "
            "another file."
        ) from None
    except TemplateError as error:
        raise ModelFileError(
            f"The chat template {one_line(name)} cannot be used: {_short(error)}. Correct it, or name "
            "another file."
        ) from None


def without_prompt(request: Generate, error: Exception) -> Ended:
    """The end of a reply whose prompt could not be made, by the error that ``Prompter.of`` raised."""
    return refused(request.reply, str(error), "context" if isinstance(error, TooLongError) else "error")


def _short(error: TemplateError) -> str:
    return shortened(str(error).rstrip("."), 200)
