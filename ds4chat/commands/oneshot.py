"""The one shot: a prompt in, the reply on stdout, everything else on stderr. Runs the engine in-process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Annotated, TextIO

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ds4chat.commands.options import OneShotOptions
from ds4chat.commands.progress import ProgressLine
from ds4chat.commands.running import INTERRUPTED, RUN_ERROR, json_line, on_ctrl_c, request_of, say
from ds4chat.engine.control import Control
from ds4chat.engine.events import (
    UNKNOWN_ID,
    Count,
    Depth,
    Ended,
    Event,
    FinishReason,
    Generate,
    Load,
    Loaded,
    Loading,
    Mode,
    Notice,
    Origin,
    Prefill,
    Revised,
    SpeculationOff,
    Step,
    Tells,
    Token,
)
from ds4chat.engine.from_settings import chosen_sampling, ends_loops, load_of, tuning_of, with_demo
from ds4chat.engine.sessions import open_session
from ds4chat.engine.speclog import conf_line, probe_line, spec_line, summary_lines, timing_line
from ds4chat.engine.stats import NonNegative, Stats, StatsDocument
from ds4chat.settings.logfile import log_to_file
from ds4chat.settings.schema import Settings
from ds4chat.text import unguarded

ONLY_THOUGHT = (
    "The reply ended while the model was thinking, so there is no answer: allow more tokens (-n), or have "
    "the model answer at once (--nothink). --show-thinking shows the thinking."
)


class TokenDocument(msgspec.Struct, forbid_unknown_fields=True):
    """A token of the reply."""

    id: Annotated[int, Meta(ge=UNKNOWN_ID, description="-1 if a server does not name it.")]
    text: Annotated[
        str,
        Meta(
            description="Empty for a mark around the thinking, and when the token ends inside a UTF-8 "
            "character."
        ),
    ]
    origin: Origin
    step: Count
    thinking: Annotated[
        bool | UnsetType, Meta(description="true: the token belongs to the thinking. Absent otherwise.")
    ] = UNSET


class AnswerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of the reply. draft, margin, gate and mode are null if a server answered, with the values
    that it was started with; temp is null if the server's own was used."""

    draft: Depth | None
    margin: Annotated[float, Meta(ge=0, le=1)] | None
    gate: NonNegative | None
    mode: Mode | None
    temp: NonNegative | None
    seed: Annotated[int, Meta(ge=0)]
    drafter: Annotated[str | None, Meta(description="Its kind.")]
    off_reason: Annotated[str, Meta(description="Why speculation is off; empty when it is on.")]
    strict_note: Annotated[str, Meta(description="What strict mode does here; empty without it.")]


class ServerDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The server that answered instead of a local model."""

    url: str
    kind: str
    version: str
    tells: Annotated[Tells, Meta(description="How much it reports about its speculation.")]


class AnswerDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One answer. With --prompts-file one object per line, in the order of the prompts."""

    text: Annotated[str, Meta(description="The answer.")]
    thinking: Annotated[
        str,
        Meta(
            description="What the model thought before and between the parts of its answer, without the "
            "marks around it."
        ),
    ]
    tokens: list[TokenDocument]
    finish_reason: FinishReason
    prompt_tokens: Annotated[Count | None, Meta(description="null: a server does not tell it.")]
    settings: AnswerSettings
    stats: StatsDocument
    server: Annotated[ServerDocument | UnsetType, Meta(description="Absent for a local model.")] = UNSET


class Printer:
    """Writes one reply's events: the answer to stdout; logs and sentences to stderr, and the thinking if
    requested. JSON, and the text of one of several prompts, are written when the reply has ended.

    number: of several prompts, which one this is. off_reason: why speculation is off, if no Loaded says it.
    """

    def __init__(
        self, settings: Settings, options: OneShotOptions, *, number: int = 0, off_reason: str = ""
    ) -> None:
        self._settings = settings
        self._json = options.json
        self._streams = not options.json and options.prompts is None
        self._show_thinking = options.show_thinking
        self._prefix = f"prompt {number}: " if number else ""
        self._off_reason = off_reason
        # A pipe or a file gets the model's text byte for byte, a terminal only printable characters.
        self._out = sys.stdout if sys.stdout.isatty() else unguarded(sys.stdout)
        self._stats = Stats()
        self._tokens: list[TokenDocument] = []
        self._text: list[str] = []
        """The answer."""
        self._thinking: list[str] = []
        self._ended: Ended | None = None
        self._loaded: Loaded | None = None
        """What is known about the models; a server's reply may add to it."""
        self._hits = 0
        self.progress = ProgressLine()
        self._line_open = False
        """The thinking left a line open on stderr."""
        self._shared = _share_terminal(sys.stdout, sys.stderr)
        self._answer_open = False
        """The answer left a line open on the terminal that stderr shares."""

    def __call__(self, event: Event) -> None:
        """Take one event."""
        self._stats.fold(event)
        if isinstance(event, Step):
            self.progress.clear()
            self._step(event)
        elif isinstance(event, Revised):
            # Replaces the tokens by what is known now; their text is written already.
            self._tokens = [_token_document(token, step) for step in event.steps for token in step.tokens]
        elif isinstance(event, Notice):
            self._say(event.message)
        elif isinstance(event, Loaded):
            self._loaded = event
            self._off_reason = event.off_reason
            if event.off_reason and (self._settings.mtp or self._settings.lookup):
                self._say(f"MTP is off: {event.off_reason}.")
        elif isinstance(event, SpeculationOff):
            if self._loaded is not None:
                self._loaded = self._loaded.without_drafter(event)
            self._off_reason = event.reason
            self._say(f"MTP is off: {event.reason}.")
        elif isinstance(event, Loading):
            self.progress.show(f"loading {event.stage} {event.fraction:.0%}")
        elif isinstance(event, Prefill):
            if event.done < event.total:
                self._end_answer()
                what = "decoding the conversation again" if event.again else "reading the prompt"
                self.progress.show(f"{what}, {event.done} of {event.total} tokens")
        elif isinstance(event, Ended):
            self.progress.clear()
            self._ended = event
            self._add_tail(event.thinking_tail, thinking=True)
            self._add_tail(event.tail, thinking=False)
            self._end_thinking()

    def finish(self) -> int:
        """Write what follows the reply, and the reply itself if it was not written as it came; the exit
        code."""
        assert self._ended is not None
        reason = self._ended.finish_reason
        if self._streams and self._text:
            if self._answer_open or not self._shared:
                print(file=self._out)
            self._out.flush()
        if self._loaded and self._loaded.strict_note:
            say(f"strict mode: {self._loaded.strict_note}.")
        if self._ended.detail:
            say(f"{self._prefix}{self._ended.detail}")
        if self._thinking and not self._text:
            say(f"{self._prefix}{ONLY_THOUGHT}")
        if self._settings.mtp_timing:
            for line in summary_lines(self._stats):
                print(line, file=sys.stderr)
        if self._json:
            print(json_line(self._document(self._ended)), flush=True)
        elif not self._streams:
            print("".join(self._text), file=self._out, flush=True)
        if reason == "cancelled":
            return INTERRUPTED
        return RUN_ERROR if reason == "error" or (reason == "context" and not self._tokens) else 0

    def _document(self, ended: Ended) -> AnswerDocument:
        """The answer as JSON. Of the settings, those that a server did not take from the request are null."""
        loaded, tuning = self._loaded, tuning_of(self._settings)
        server = loaded.server if loaded else None
        here = server is None
        return AnswerDocument(
            text="".join(self._text),
            thinking="".join(self._thinking),
            tokens=self._tokens,
            finish_reason=ended.finish_reason,
            prompt_tokens=ended.prompt_tokens or None,
            settings=AnswerSettings(
                draft=tuning.depth if here else None,
                margin=tuning.margin if here else None,
                gate=tuning.gate if here else None,
                mode=tuning.mode if here else None,
                temp=tuning.temp if server is None or "temp" in server.chosen else None,
                seed=ended.seed,
                drafter=loaded.drafter.kind if loaded and loaded.drafter else None,
                off_reason=self._off_reason,
                strict_note=loaded.strict_note if loaded else "",
            ),
            stats=self._stats.document(),
            server=ServerDocument(server.url, server.kind, server.version, server.tells) if server else UNSET,
        )

    def _add_tail(self, tail: str, *, thinking: bool) -> None:
        """Append text that was held back to the last token on its side, if there is one."""
        owner = next((t for t in reversed(self._tokens) if (t.thinking is True) is thinking), None)
        if owner is not None:
            owner.text += tail
        self._put(tail, thinking)

    def _step(self, step: Step) -> None:
        for token in step.tokens:
            self._tokens.append(_token_document(token, step))
            self._put(token.text, token.thinking)
        self._out.flush()
        lines: list[str] = []
        if self._settings.mtp_timing:
            lines.append(timing_line(step))
        if self._settings.mtp_spec_log:
            lines.append(spec_line(step))
        if self._settings.mtp_conf_log:
            lines += [conf_line(step, row) for row in step.judged]
        if step.tuning.probe:
            for row in step.judged:
                self._hits += row.accepted
                lines.append(probe_line(row.target, row.draft, self._hits, self._stats.judged))
        if lines:
            self._end_lines()
            print("\n".join(lines), file=sys.stderr)

    def _put(self, text: str, thinking: bool) -> None:
        if not text:
            return
        (self._thinking if thinking else self._text).append(text)
        if thinking and self._show_thinking:
            self._end_answer()
            sys.stderr.write(text)
            sys.stderr.flush()
            self._line_open = True
        elif not thinking:
            self._end_thinking()
            if self._streams:
                self._out.write(text)
                self._answer_open = self._shared and not text.endswith("\n")

    def _say(self, sentence: str) -> None:
        """Write a sentence to stderr, on a line of its own."""
        self.progress.clear()
        self._end_lines()
        say(sentence)

    def _end_lines(self) -> None:
        """Have what follows on stderr begin on a line of its own."""
        self._end_thinking()
        self._end_answer()

    def _end_thinking(self) -> None:
        """End the line that the thinking left open on stderr."""
        if self._line_open:
            print(file=sys.stderr, flush=True)
            self._line_open = False

    def _end_answer(self) -> None:
        """End the line that the answer left open; on stderr, as the answer itself has no such line end."""
        if self._answer_open:
            self._out.flush()
            print(file=sys.stderr, flush=True)
            self._answer_open = False


def _share_terminal(one: TextIO, other: TextIO) -> bool:
    """Whether both streams are written to the same terminal."""
    try:
        if not (one.isatty() and other.isatty()):
            return False
        return os.fstat(one.fileno()).st_rdev == os.fstat(other.fileno()).st_rdev
    except (AttributeError, ValueError, OSError):  # not a stream, or closed
        return False


def _token_document(token: Token, step: Step) -> TokenDocument:
    return TokenDocument(token.id, token.text, token.origin, step.index, True if token.thinking else UNSET)


def run(settings: Settings, options: OneShotOptions, sources: Mapping[str, str]) -> int:
    """Answer one prompt, or a file of them; the exit code: 0, 1 for a run error, 130 after Ctrl-C.
    ``sources`` says where each setting comes from."""
    log_to_file(settings)
    settings = with_demo(settings)
    load = load_of(settings, chosen_sampling(sources))
    if options.prompts is not None and load.server is None:
        return _run_batched(settings, options, options.prompts, load)
    return _run_in_turn(settings, options, load)


def _request(settings: Settings, options: OneShotOptions, prompt: str) -> Generate:
    return request_of(
        settings,
        prompt,
        raw=options.raw,
        ignore_eos=options.ignore_eos,
        baseline=True,
        end_loops=ends_loops(settings),
    )


def _run_in_turn(settings: Settings, options: OneShotOptions, load: Load) -> int:
    """Answer the prompt, or over a server a file of them one after the other; the exit code. Ctrl-C stops the
    reply and keeps what came; a second one ends the process as usual."""
    prompts = options.prompts or [options.prompt or ""]
    printers = [
        Printer(settings, options, number=n if options.prompts else 0) for n in range(1, len(prompts) + 1)
    ]
    control = Control(tuning_of(settings))
    try:
        session, loaded = open_session(load, printers[0], forgiving=False)
    finally:
        printers[0].progress.clear()
    code = 0
    with closing(session), on_ctrl_c(control.cancel):
        for prompt, printer in zip(prompts, printers):
            printer(loaded)
            session.generate(_request(settings, options, prompt), control, printer)
            code = printer.finish() or code
            if code == INTERRUPTED:
                break
    return code


def _run_batched(settings: Settings, options: OneShotOptions, prompts: Sequence[str], load: Load) -> int:
    """Answer every prompt of a file in one batched context, in order; the exit code."""
    import ds4chat.engine.llama  # noqa: F401  first, so that llama.cpp is loaded before numpy
    from ds4chat.engine.batched import OFF_REASON, BatchedSession
    from ds4chat.engine.llama import LlamaError

    if settings.mtp or settings.lookup:
        say(f"MTP is off: {OFF_REASON}.")
    session = BatchedSession(load, min(options.parallel, len(prompts)))
    if session.note:
        say(session.note)
    code = 0
    with closing(session):
        try:
            for index, events in session.run([_request(settings, options, prompt) for prompt in prompts]):
                printer = Printer(settings, options, number=index + 1, off_reason=OFF_REASON)
                for event in events:
                    printer(event)
                code = printer.finish() or code
        except LlamaError as error:
            say(f"{error} The answers above are complete.")
            code = RUN_ERROR
        except KeyboardInterrupt:
            say("Stopped. The answers above are complete; run it again for the rest.")
            code = INTERRUPTED
    return code
