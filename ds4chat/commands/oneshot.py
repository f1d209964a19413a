"""The one shot: a prompt in, the reply on stdout, everything else on stderr. Runs the engine in-process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Annotated, TextIO

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ds4chat.commands.options import OneShotOptions
from ds4chat.commands.running import INTERRUPTED, RUN_ERROR, json_line, on_ctrl_c, request_of, say
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
from ds4chat.engine.speclog import conf_line, probe_line, spec_line, summary_lines, timing_line
from ds4chat.engine.stats import NonNegative, Stats, StatsDocument
from ds4chat.models.errors import ModelFileError
from ds4chat.settings.logfile import log_to_file
from ds4chat.settings.schema import Settings
from ds4chat.text import redraw_line, supports_escapes, unguarded

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
    prompt_tokens: Count
    settings: AnswerSettings
    stats: StatsDocument
    server: Annotated[ServerDocument | UnsetType, Meta(description="Absent for a local model.")] = UNSET


class Printer:
    """Writes a reply's events: the answer to stdout; logs and sentences to stderr, and the thinking if
    requested."""

    def __init__(
        self, settings: Settings, *, as_json: bool, out: TextIO, err: TextIO, show_thinking: bool = False
    ) -> None:
        self._settings = settings
        self._json = as_json
        # A pipe or a file gets the model's text byte for byte, a terminal only printable characters.
        self._out, self._err = out if out.isatty() else unguarded(out), err
        self._show_thinking = show_thinking
        self.stats = Stats()
        self.tokens: list[TokenDocument] = []
        self.text: list[str] = []
        """The answer."""
        self.thinking: list[str] = []
        self.ended: Ended | None = None
        self.loaded: Loaded | None = None
        """What is known about the models; a server's reply may add to it."""
        self._hits = 0
        self._progress = False
        self._line_open = False

    def __call__(self, event: Event) -> None:
        """Take one event."""
        self.stats.fold(event)
        if isinstance(event, Step):
            self._clear_progress()
            self._step(event)
        elif isinstance(event, Revised):
            self._revise(event)
        elif isinstance(event, Notice):
            self._clear_progress()
            self._end_thinking()
            print(f"ds4chat: {event.message}", file=self._err)
        elif isinstance(event, Loaded):
            self.loaded = event
            if event.off_reason and (self._settings.mtp or self._settings.lookup):
                self._say_off(event.off_reason)
        elif isinstance(event, SpeculationOff):
            if self.loaded is not None:
                self.loaded = self.loaded.without_drafter(event)
            self._say_off(event.reason)
        elif isinstance(event, Loading):
            self._show_progress(f"loading {event.stage} {event.fraction:.0%}")
        elif isinstance(event, Prefill):
            if event.done < event.total:
                what = "decoding the conversation again" if event.again else "reading the prompt"
                self._show_progress(f"{what}, {event.done} of {event.total} tokens")
        elif isinstance(event, Ended):
            self._clear_progress()
            self.ended = event
            self._add_tail(event.thinking_tail, thinking=True)
            self._add_tail(event.tail, thinking=False)
            self._end_thinking()

    def finish(self) -> None:
        """Write what follows the reply: the closing newline, the reason it ended early, the summary."""
        assert self.ended is not None
        if not self._json and self.text:
            print(file=self._out, flush=True)
        if self.ended.detail:
            print(f"ds4chat: {self.ended.detail}", file=self._err)
        if self.only_thought:
            print(f"ds4chat: {ONLY_THOUGHT}", file=self._err)
        if self._settings.mtp_timing:
            for line in summary_lines(self.stats):
                print(line, file=self._err)

    def _say_off(self, reason: str) -> None:
        self._clear_progress()
        print(f"ds4chat: MTP is off: {reason}.", file=self._err)

    def write_text(self) -> None:
        """Write the whole answer to stdout, for events that were collected as JSON."""
        print("".join(self.text), file=self._out, flush=True)

    def document(self, off_reason: str = "") -> AnswerDocument:
        """The answer as JSON. ``off_reason``: why speculation is off, if no Loaded says it. Of the settings,
        those that a server did not take from the request are null."""
        ended, loaded, tuning = self.ended, self.loaded, tuning_of(self._settings)
        assert ended is not None
        server = loaded.server if loaded else None
        here = server is None
        return AnswerDocument(
            text="".join(self.text),
            thinking="".join(self.thinking),
            tokens=self.tokens,
            finish_reason=ended.finish_reason,
            prompt_tokens=ended.prompt_tokens,
            settings=AnswerSettings(
                draft=tuning.depth if here else None,
                margin=tuning.margin if here else None,
                gate=tuning.gate if here else None,
                mode=tuning.mode if here else None,
                temp=tuning.temp if server is None or "temp" in server.chosen else None,
                seed=ended.seed,
                drafter=loaded.drafter.kind if loaded and loaded.drafter else None,
                off_reason=loaded.off_reason if loaded else off_reason,
                strict_note=loaded.strict_note if loaded else "",
            ),
            stats=self.stats.document(),
            server=ServerDocument(server.url, server.kind, server.version, server.tells) if server else UNSET,
        )

    @property
    def failed(self) -> bool:
        """Nothing was answered, because of an error or a full context."""
        assert self.ended is not None
        return not self.tokens and self.ended.finish_reason in ("error", "context")

    @property
    def only_thought(self) -> bool:
        """The reply ended before its answer began."""
        return bool(self.thinking) and not self.text

    def _add_tail(self, tail: str, *, thinking: bool) -> None:
        """Append text that was held back to the last token on its side, if there is one."""
        owner = next((t for t in reversed(self.tokens) if (t.thinking is True) is thinking), None)
        if owner is not None:
            owner.text += tail
        self._put(tail, thinking)

    def _revise(self, event: Revised) -> None:
        """Replace the tokens by what is known now; their text is written already."""
        self.tokens = [_token_document(token, step) for step in event.steps for token in step.tokens]

    def _step(self, step: Step) -> None:
        for token in step.tokens:
            self.tokens.append(_token_document(token, step))
            self._put(token.text, token.thinking)
        self._out.flush()
        if self._settings.mtp_timing or self._settings.mtp_spec_log or self._settings.mtp_conf_log:
            self._end_thinking()
        if self._settings.mtp_timing:
            print(timing_line(step), file=self._err)
        if self._settings.mtp_spec_log:
            print(spec_line(step), file=self._err)
        if self._settings.mtp_conf_log:
            for row in step.judged:
                print(conf_line(step, row), file=self._err)
        if step.tuning.probe:
            for row in step.judged:
                self._hits += row.accepted
                print(probe_line(row.target, row.draft, self._hits, self.stats.judged), file=self._err)

    def _put(self, text: str, thinking: bool) -> None:
        if not text:
            return
        (self.thinking if thinking else self.text).append(text)
        if thinking and self._show_thinking:
            self._err.write(text)
            self._err.flush()
            self._line_open = True
        elif not thinking:
            self._end_thinking()
            if not self._json:
                self._out.write(text)

    def _end_thinking(self) -> None:
        """End the line that the thinking left open on stderr."""
        if self._line_open:
            print(file=self._err, flush=True)
            self._line_open = False

    def _show_progress(self, text: str) -> None:
        if supports_escapes(self._err):
            redraw_line(self._err, text)
            self._progress = True

    def _clear_progress(self) -> None:
        if self._progress:
            redraw_line(self._err)
            self._progress = False


def _token_document(token: Token, step: Step) -> TokenDocument:
    return TokenDocument(token.id, token.text, token.origin, step.index, True if token.thinking else UNSET)


def run(settings: Settings, options: OneShotOptions, sources: Mapping[str, str]) -> int:
    """Answer one prompt, or a file of them; the exit code: 0, 1 for a run error, 130 after Ctrl-C.
    ``sources`` says where each setting comes from."""
    log_to_file(settings)
    try:
        settings = with_demo(settings)
        load = load_of(settings, chosen_sampling(sources))
    except ModelFileError as error:
        say(error)
        return RUN_ERROR
    if options.prompts is not None:
        return run_many(settings, options, load) if load.server is None else run_each(settings, options, load)
    printer = Printer(
        settings, as_json=options.json, out=sys.stdout, err=sys.stderr, show_thinking=options.show_thinking
    )
    if not answer(load, _request(settings, options, options.prompt or ""), printer):
        return RUN_ERROR
    loaded = printer.loaded
    assert loaded is not None
    if loaded.strict_note:
        say(f"strict mode: {loaded.strict_note}.")
    printer.finish()
    assert printer.ended is not None
    if options.json:
        print(json_line(printer.document()))
    if printer.ended.finish_reason == "cancelled":
        return INTERRUPTED
    failed = printer.ended.finish_reason == "error" or not (
        printer.tokens or printer.ended.finish_reason in ("stop", "length")
    )
    return RUN_ERROR if failed else 0


def _request(settings: Settings, options: OneShotOptions, prompt: str) -> Generate:
    return request_of(
        settings,
        prompt,
        raw=options.raw,
        ignore_eos=options.ignore_eos,
        baseline=True,
        end_loops=ends_loops(settings),
    )


def answer(load: Load, request: Generate, emit: Callable[[Event], None]) -> bool:
    """Load, answer one request and free everything; False after a load error, which was printed.

    Ctrl-C stops the reply and keeps what came; a second one ends the process as usual.
    """
    from ds4chat.engine.control import Control
    from ds4chat.engine.events import LoadError
    from ds4chat.engine.sessions import open_session

    control = Control(request.tuning)
    try:
        session, loaded = open_session(load, emit, forgiving=False)
    except LoadError as error:
        say(error)
        return False
    emit(loaded)
    try:
        with on_ctrl_c(control.cancel):
            session.generate(request, control, emit)
    finally:
        session.close()
    return True


def run_many(settings: Settings, options: OneShotOptions, load: Load) -> int:
    """Answer every prompt of a file in one batched context, in order; the exit code."""
    import ds4chat.engine.llama  # noqa: F401  first, so that llama.cpp is loaded before numpy
    from ds4chat.engine.batched import OFF_REASON, BatchedSession
    from ds4chat.engine.llama import LlamaError

    prompts = options.prompts or ()
    if settings.mtp or settings.lookup:
        say(f"MTP is off: {OFF_REASON}.")
    try:
        session = BatchedSession(load, max(1, min(options.parallel, len(prompts))))
    except (ModelFileError, LlamaError) as error:
        say(error)
        return RUN_ERROR
    if session.note:
        say(f"{session.note}")
    code = 0
    try:
        for index, events in session.run([_request(settings, options, prompt) for prompt in prompts]):
            printer = Printer(
                settings, as_json=True, out=sys.stdout, err=sys.stderr, show_thinking=options.show_thinking
            )
            for event in events:
                printer(event)
            _show(index + 1, printer, options, OFF_REASON)
            if printer.failed:
                code = RUN_ERROR
    except LlamaError as error:
        say(f"{error} The answers above are complete.")
        code = RUN_ERROR
    except KeyboardInterrupt:
        say("Stopped. The answers above are complete; run it again for the rest.")
        code = INTERRUPTED
    finally:
        session.close()
    return code


def run_each(settings: Settings, options: OneShotOptions, load: Load) -> int:
    """Answer every prompt of a file over a server, one after the other; the exit code."""
    code = 0
    for index, prompt in enumerate(options.prompts or ()):
        printer = Printer(
            settings, as_json=True, out=sys.stdout, err=sys.stderr, show_thinking=options.show_thinking
        )
        if not answer(load, _request(settings, options, prompt), printer):
            return RUN_ERROR
        _show(index + 1, printer, options)
        if printer.ended and printer.ended.finish_reason == "cancelled":
            return INTERRUPTED
        if printer.failed:
            code = RUN_ERROR
    return code


def _show(number: int, printer: Printer, options: OneShotOptions, off_reason: str = "") -> None:
    """Print one answer of several on stdout, and its problems on stderr."""
    assert printer.ended is not None
    if printer.ended.detail:
        say(f"prompt {number}: {printer.ended.detail}")
    if printer.only_thought:
        say(f"prompt {number}: {ONLY_THOUGHT}")
    if options.json:
        print(json_line(printer.document(off_reason)), flush=True)
    else:
        printer.write_text()
