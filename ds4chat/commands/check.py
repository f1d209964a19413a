"""The lossless check from the command line: answer with MTP, replay without, and compare.

A reply is decoded with the given settings; then its tokens are decoded again one by one without drafts, and
compared. Under exact settings a difference is either a rounding tie (the two best tokens are closer than
a batch rounds) or a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
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
    Mode,
    Notice,
    Replayed,
    SpeculationOff,
    Tuning,
)
from ds4chat.engine.from_settings import load_of, tuning_of
from ds4chat.engine.opening import open_session
from ds4chat.engine.replay import TIE
from ds4chat.engine.session import Session
from ds4chat.engine.stats import NonNegative, Stats, StatsDocument
from ds4chat.errors import UserFacingError
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
    tie: Annotated[bool, Meta(description="It differs, but by no more than rounding explains.")]
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


class CheckError(UserFacingError):
    """The check is impossible."""


def parser() -> Parser:
    """The parser of the command."""
    made = Parser(
        prog="ds4chat check",
        usage="ds4chat check -m FILE [--mtp [FILE]] [-p TEXT] [options]",
        description="Decode a reply with MTP, replay it without, and show the first difference.",
    )
    add_prompt(made.add_argument_group("Prompt"))
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
    tuning = replace(tuning_of(settings), probe=False)
    control = Control(tuning)
    off: SpeculationOff | None = None

    def note(event: Event) -> None:
        nonlocal off
        if isinstance(event, Notice):
            say(event.message)
        elif isinstance(event, SpeculationOff):
            off = event
            say(f"MTP is off: {event.reason}.")

    session, loaded = open_session(load_of(settings), note, forgiving=False)
    if loaded.strict_note:
        say(f"strict mode: {loaded.strict_note}.")
    checked: list[CheckedReply] = []
    code = 0
    try:
        with closing(session), on_ctrl_c(control.cancel):
            if loaded.drafter is None:
                raise CheckError(
                    f"There is nothing to check: MTP is off, because {loaded.off_reason}. Give a support "
                    "model (--mtp FILE) or --lookup."
                )
            for number, prompt in enumerate(_prompts(options)):
                request = request_of(
                    settings,
                    prompt,
                    reply=number,
                    raw=options.raw,
                    ignore_eos=options.ignore_eos,
                    tuning=tuning,
                    max_tokens=settings.predict if settings.predict >= 0 else TOKENS,
                )
                reply = check(session, prompt, request, control, note)
                if reply is None:
                    code = INTERRUPTED
                    break
                checked.append(reply)
                if not options.json:
                    print(f"{_short(prompt)}\n  {reply.sentence}", flush=True)
    except CheckError as error:
        say(error)
        code = RUN_ERROR
    if off is not None:
        loaded = loaded.without_drafter(off)
    if options.json:
        print(json_line(_document(checked, loaded, tuning)))
    elif len(checked) > 1:
        print(_summary(checked))
    return code or int(not all(reply.equal or reply.tie for reply in checked))


def check(
    session: Session, prompt: str, request: Generate, control: Control, note: Callable[[Event], object]
) -> CheckedReply | None:
    """Answer and replay one request; None when it was cancelled. ``note`` is called with every event. Raises
    CheckError when the engine fails."""
    stats = Stats()
    ended: list[Ended] = []
    replayed: list[Replayed] = []

    def collect(event: Event) -> None:
        stats.fold(event)
        if isinstance(event, Ended):
            ended.append(event)
        elif isinstance(event, Replayed):
            replayed.append(event)
        note(event)

    session.reset()
    session.generate(request, control, collect)
    if control.cancelled:
        return None
    if ended[0].finish_reason == "error" or not stats.steps:
        raise CheckError(ended[0].detail or "The model's answer is empty, so there is nothing to check.")
    session.replay(request.reply, control, collect)
    if control.cancelled:
        return None
    if replayed[0].equal is None:
        raise CheckError(replayed[0].detail)
    return checked_reply(prompt, replayed[0], stats)


def checked_reply(prompt: str, replayed: Replayed, stats: Stats) -> CheckedReply:
    """What was found about one reply."""
    difference = None
    if not replayed.equal:
        difference = Difference(
            index=replayed.first_difference,
            mtp=ChosenToken(replayed.spec_token, replayed.spec_text),
            plain=ChosenToken(replayed.plain_token, replayed.plain_text),
            gap=round(replayed.gap, 6),
        )
    return CheckedReply(
        prompt=prompt,
        equal=bool(replayed.equal),
        # After an accepted draft that is not the target's choice, a difference is never due to rounding.
        tie=not replayed.equal and replayed.gap < TIE and not stats.lossy,
        compared=replayed.compared,
        difference=difference,
        sentence=_sentence(replayed, stats),
        stats=stats.document(),
    )


def _sentence(replayed: Replayed, stats: Stats) -> str:
    if not replayed.equal:
        return (
            f"Different: MTP wrote {replayed.spec_text!r} where plain decoding writes "
            f"{replayed.plain_text!r}, {replayed.gap:.4f} logits before the next best. {replayed.detail}"
        )
    tokens, rate = stats.emitted, stats.decode_tokens_per_s
    end = " and its end" if replayed.compared > tokens else ""
    sentences = [
        f"Equal: all {tokens} tokens{end} are those of plain decoding "
        f"({stats.accepted} of {stats.judged} drafts accepted)."
    ]
    if replayed.plain_speed:
        sentences.append(replayed.plain_speed)
        if rate:
            sentences.append(f"With MTP it was {rate:.1f} tok/s.")
    return " ".join(sentences)


def _prompts(options: OneShotOptions) -> list[str]:
    """The given prompt, or the first one of three kinds of text."""
    if options.prompt is not None:
        return [options.prompt]
    return [workload.prompts[0] for workload in workloads() if workload.name in KINDS]


def _short(prompt: str) -> str:
    line = " ".join(prompt.split())
    return line if len(line) <= 76 else f"{line[:73]}..."


def _summary(checked: Sequence[CheckedReply]) -> str:
    equal = sum(reply.equal for reply in checked)
    ties = sum(reply.tie for reply in checked)
    tokens = sum(reply.compared for reply in checked)
    text = f"{equal} of {len(checked)} replies equal plain decoding, {tokens} tokens compared"
    if ties:
        text += f"; {ties} differ by a rounding tie"
    if real := len(checked) - equal - ties:
        text += f"; {real} differ by more than rounding"
    return f"{text}."


def _document(checked: list[CheckedReply], loaded: Loaded, tuning: Tuning) -> CheckDocument:
    return CheckDocument(
        equal=bool(checked) and all(reply.equal for reply in checked),
        lossless=bool(checked) and all(reply.equal or reply.tie for reply in checked),
        model=loaded.target.path,
        drafter=loaded.drafter.kind if loaded.drafter else None,
        off_reason=loaded.off_reason,
        settings=CheckSettings(tuning.depth, tuning.margin, tuning.gate, tuning.mode),
        replies=checked,
    )
