"""The lossless check from the command line: answer with MTP, replay without, and compare.

A reply is decoded with the given settings; then its tokens are decoded again one by one without drafts, and
compared. Under exact settings a difference is either a rounding tie (the two best tokens are closer than
a batch rounds) or a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
from msgspec import Meta

from ds4chat.commands.arguments import Parser, UsageError, add_hub_model, add_prompt, add_settings
from ds4chat.commands.bench.workloads import workloads
from ds4chat.commands.options import OneShotOptions
from ds4chat.commands.prompt import prompt_of
from ds4chat.commands.running import (
    INTERRUPTED,
    RUN_ERROR,
    json_line,
    on_ctrl_c,
    read_options,
    request_of,
    say,
)
from ds4chat.engine.control import Control
from ds4chat.engine.events import (
    Count,
    Depth,
    Ended,
    Event,
    Generate,
    Loaded,
    LoadError,
    Mode,
    Notice,
    Replayed,
    SpeculationOff,
    Step,
    Tuning,
)
from ds4chat.engine.from_settings import load_of, tuning_of, with_demo
from ds4chat.engine.opening import open_session
from ds4chat.engine.replay import TIE
from ds4chat.engine.session import Session
from ds4chat.engine.stats import NonNegative, Stats, StatsDocument
from ds4chat.models.errors import ModelFileError
from ds4chat.settings.schema import Settings

TOKENS = 256
"""Most tokens of a reply if the settings set no limit: many blocks, and each token is decoded twice."""
KINDS = ("code", "rewrite", "story")
"""Kinds of text whose first prompts are checked if no prompt is given."""


class ChosenToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token as one of the two decodings chose it."""

    id: int
    text: str


class Difference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first token in which a reply differs from plain decoding."""

    index: Annotated[int, Meta(description="Its number in the reply, from 0.")]
    mtp: ChosenToken
    plain: ChosenToken
    gap: Annotated[
        float, Meta(description="Logits between plain decoding's best and second best token there.")
    ]


class CheckedReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One reply and its replay."""

    prompt: str
    equal: bool
    tie: Annotated[bool, Meta(description="It differs, by no more than rounding explains.")]
    compared: Annotated[Count, Meta(description="Tokens compared, an end token included.")]
    difference: Difference | None
    sentence: Annotated[str, Meta(description="What was found.")]
    stats: StatsDocument


class CheckSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of the replies."""

    draft: Depth
    margin: NonNegative
    gate: NonNegative
    mode: Mode


class CheckDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The result of a check."""

    equal: Annotated[bool, Meta(description="Every reply has the tokens of plain decoding.")]
    lossless: Annotated[bool, Meta(description="Every reply is equal or differs by a rounding tie.")]
    model: Annotated[str, Meta(description="Path of the file.")]
    drafter: Annotated[str | None, Meta(description="Its kind.")]
    off_reason: Annotated[str, Meta(description="Why speculation is off; empty when it is on.")]
    settings: CheckSettings
    replies: list[CheckedReply]


@dataclass(frozen=True, slots=True)
class Checked:
    """One reply and its replay."""

    prompt: str
    replayed: Replayed
    stats: Stats

    @property
    def tie(self) -> bool:
        """It differs at a token where the two best are so close that rounding decides; never after a draft
        was accepted that is not the target's choice."""
        return not self.replayed.equal and self.replayed.gap < TIE and not self.stats.lossy

    @property
    def sentence(self) -> str:
        """What was found."""
        r = self.replayed
        if r.equal:
            drafts = f"{self.stats.accepted} of {self.stats.judged} drafts accepted"
            tokens = self.stats.emitted
            end = " and its end" if r.compared > tokens else ""
            same = f"Equal: all {tokens} tokens{end} are those of plain decoding ({drafts})."
            return f"{same} {self._speeds}".rstrip()
        return (
            f"Different: MTP wrote {r.spec_text!r} where plain decoding writes {r.plain_text!r}, "
            f"{r.gap:.4f} logits before the next best. {r.detail}"
        )

    @property
    def _speeds(self) -> str:
        """Both speeds, if both were measured."""
        rate = self.stats.decode_tokens_per_s
        plain = self.replayed.plain_speed
        return f"{plain} With MTP it was {rate:.1f} tok/s." if plain and rate else plain

    def document(self) -> CheckedReply:
        """The entry in the JSON."""
        r = self.replayed
        difference = Difference(
            index=r.first_difference,
            mtp=ChosenToken(r.spec_token, r.spec_text),
            plain=ChosenToken(r.plain_token, r.plain_text),
            gap=round(r.gap, 6),
        )
        return CheckedReply(
            prompt=self.prompt,
            equal=bool(r.equal),
            tie=self.tie,
            compared=r.compared,
            difference=None if r.equal else difference,
            sentence=self.sentence,
            stats=self.stats.document(),
        )


class CheckError(Exception):
    """The check is impossible; the text is a sentence for the user."""


def parser() -> Parser:
    """The parser of the command."""
    made = Parser(
        prog="ds4chat check",
        usage="ds4chat check -m FILE [--mtp [FILE]] [-p TEXT] [options]",
        description="Decode a reply with MTP, replay it without, and show the first difference.",
    )
    add_prompt(made, made.add_argument_group("Prompt"))
    add_hub_model(made)
    add_settings(made)
    return made


def main(argv: list[str]) -> int:
    """Carry out ``ds4chat check``; the exit code. Raises UsageError."""
    given, loaded = read_options(parser(), argv)
    if loaded.settings.server:
        raise UsageError(
            "A server cannot be told to decode without drafts: check takes a model with -m FILE."
        )
    prompt = prompt_of(given.prompt, given.prompt_file, raw=given.raw, stdin=False)
    return run(
        loaded.settings, OneShotOptions(prompt, json=given.json, raw=given.raw, ignore_eos=given.ignore_eos)
    )


def run(settings: Settings, options: OneShotOptions) -> int:
    """Check one prompt, or three of those that come with ds4chat; the exit code: 0 if all replies equal plain
    decoding up to rounding ties, 1 if one does not or the check failed, 130 after Ctrl-C."""
    control = Control(Tuning())
    stopped = False
    off: SpeculationOff | None = None

    def stop() -> None:
        nonlocal stopped
        stopped = True
        control.cancel()

    def note(event: Event) -> None:
        nonlocal off
        if isinstance(event, Notice):
            say(f"{event.message}")
        elif isinstance(event, SpeculationOff):
            off = event
            say(f"MTP is off: {event.reason}.")

    try:
        settings = with_demo(settings)
        session, loaded = open_session(load_of(settings), note, forgiving=False)
    except (LoadError, ModelFileError) as error:
        say(error)
        return RUN_ERROR
    if loaded.strict_note:
        say(f"strict mode: {loaded.strict_note}.")
    checked: list[Checked] = []
    code = 0
    try:
        _need_drafter(loaded)
        with on_ctrl_c(stop):
            for number, request in enumerate(_requests(settings, options)):
                control = Control(request.tuning)
                done = None if stopped else check(session, replace(request, reply=number), control, note)
                if done is None:
                    code = INTERRUPTED
                    break
                checked.append(done)
                if not options.json:
                    print(f"{_short(done.prompt)}\n  {done.sentence}", flush=True)
    except CheckError as error:
        say(error)
        code = RUN_ERROR
    finally:
        session.close()
    if off is not None:
        loaded = loaded.without_drafter(off)
    if options.json:
        print(json_line(_document(checked, loaded, settings)))
    elif len(checked) > 1:
        print(_summary(checked))
    return code or int(any(not (c.replayed.equal or c.tie) for c in checked))


def check(
    session: Session,
    request: Generate,
    control: Control,
    note: Callable[[Event], object] = lambda event: None,
) -> Checked | None:
    """Answer and replay one request; None when it was cancelled. Raises CheckError when the engine failed.

    ``note``: called with every event of both.
    """
    stats = Stats()
    ended: list[Ended] = []
    replayed: list[Replayed] = []

    def collect(event: Event) -> None:
        if isinstance(event, (Step, Ended, Replayed)):
            stats.fold(event)
        if isinstance(event, Ended):
            ended.append(event)
        elif isinstance(event, Replayed):
            replayed.append(event)
        note(event)

    session.reset()
    session.generate(request, control, collect)
    if ended[-1].finish_reason == "error" or not stats.steps:
        raise CheckError(ended[-1].detail or "The model's answer is empty, so there is nothing to check.")
    if control.cancelled:
        return None
    session.replay(request.reply, control, collect)
    if replayed[0].equal is None:
        if control.cancelled:
            return None
        raise CheckError(replayed[0].detail)
    return Checked(_prompt_of(request), replayed[0], stats)


def _need_drafter(loaded: Loaded) -> None:
    """Raises CheckError if every reply would be plain decoding anyway."""
    if loaded.drafter is None:
        raise CheckError(
            f"There is nothing to check: MTP is off, because {loaded.off_reason}. Give a support model "
            "(--mtp FILE) or --lookup."
        )


def _requests(settings: Settings, options: OneShotOptions) -> Iterator[Generate]:
    """The requests: the given prompt, or the first one of three kinds of text."""
    tuning = replace(tuning_of(settings), probe=False)
    limit = settings.predict if settings.predict >= 0 else TOKENS
    prompts: Sequence[str] = (
        [options.prompt]
        if options.prompt is not None
        else [workload.prompts[0] for workload in workloads() if workload.name in KINDS]
    )
    for prompt in prompts:
        yield request_of(
            settings,
            prompt,
            reply=0,
            raw=options.raw,
            ignore_eos=options.ignore_eos,
            tuning=tuning,
            max_tokens=limit,
        )


def _prompt_of(request: Generate) -> str:
    return request.prompt if request.prompt is not None else request.messages[-1].content


def _short(prompt: str) -> str:
    line = " ".join(prompt.split())
    return line if len(line) <= 76 else f"{line[:73]}..."


def _summary(checked: Sequence[Checked]) -> str:
    equal = sum(bool(c.replayed.equal) for c in checked)
    ties = sum(c.tie for c in checked)
    tokens = sum(c.replayed.compared for c in checked)
    text = f"{equal} of {len(checked)} replies equal plain decoding, {tokens} tokens compared"
    if ties:
        text += f"; {ties} differ by a rounding tie"
    if real := len(checked) - equal - ties:
        text += f"; {real} differ by more than rounding"
    return f"{text}."


def _document(checked: Sequence[Checked], loaded: Loaded, settings: Settings) -> CheckDocument:
    tuning = tuning_of(settings)
    return CheckDocument(
        equal=bool(checked) and all(c.replayed.equal for c in checked),
        lossless=bool(checked) and all(c.replayed.equal or c.tie for c in checked),
        model=loaded.target.path,
        drafter=loaded.drafter.kind if loaded.drafter else None,
        off_reason=loaded.off_reason,
        settings=CheckSettings(tuning.depth, tuning.margin, tuning.gate, tuning.mode),
        replies=[c.document() for c in checked],
    )
