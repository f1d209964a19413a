"""What the target is asked: prompts from hand-written templates, written as tokens in the chat format.

This step alone needs llama.cpp, for the tokenizer in the GGUF; its result, one JSON file, is all that the
steps on the GPU machine take from it.
"""

from __future__ import annotations

import json
import random
import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eagle3_training.errors import TrainingError

CATALOGUE = Path(__file__).parent.parent / "prompts.toml"
SUMMARISED = ("sum", "rewrite")
"""Kinds of template whose passage is sometimes cut to its first sentences."""
LONGEST_START = 330
LONGEST_FOLLOW_UP = 90
USER, ASSISTANT = 0, 1


@dataclass(frozen=True)
class ChatFormat:
    """The pieces of text around the turns of a conversation. The default is ChatML."""

    start: str = ""
    """Before everything else, for targets that want their beginning-of-sequence token."""
    system_open: str = "<|im_start|>system\n"
    system_close: str = "<|im_end|>\n"
    user_open: str = "<|im_start|>user\n"
    user_close: str = "<|im_end|>\n<|im_start|>assistant\n"
    """From the user's last word to the assistant's first; it begins with a control token."""
    assistant_close: str = "<|im_end|>"
    """One token: the one that the model emits to end its turn."""
    between: str = "\n"
    """From the end of an answer to the next user_open."""
    stops: tuple[str, ...] = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    """Tokens that, sampled, end a turn while data is generated. They are always in the draft vocabulary."""

    @classmethod
    def load(cls, path: Path | None) -> ChatFormat:
        """The format in a JSON file with these field names; ChatML without a file. Raises TrainingError."""
        if path is None:
            return cls()
        try:
            values = json.loads(path.read_text("utf-8"))
            return cls(**{**values, "stops": tuple(values.get("stops", cls.stops))})
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise TrainingError(f"{path} is not a chat format: {error}") from None

    def opening(self, system: str | None) -> str:
        """Text up to where the first user turn's content begins."""
        before = "" if system is None else f"{self.system_open}{system}{self.system_close}"
        return f"{self.start}{before}{self.user_open}"


@dataclass(frozen=True)
class Continuation:
    """Tokens that follow the assistant's end of turn, and whose text is sampled after them."""

    tokens: list[int]
    role: int


@dataclass(frozen=True)
class HeldOut:
    """A prompt for the evaluation, with its chat format around it."""

    kind: str
    text: str
    tokens: list[int]


@dataclass(frozen=True)
class Prompts:
    """Everything that generation needs to know of the tokenizer and the prompts."""

    n_vocab: int
    openings: list[list[int]]
    """Tokens before a user turn that the model itself is to write."""
    opening_weights: list[int]
    starts: list[list[int]]
    """Whole prompts, up to where the assistant's words begin."""
    continuations: list[Continuation]
    user_close: list[int]
    """Tokens between the user's words and the assistant's; the first is written where a user turn ends."""
    assistant_close: int
    stops: list[int]
    held_out: list[HeldOut]

    def held_out_of(self, per_kind: int | None) -> list[HeldOut]:
        """The first ``per_kind`` held-out prompts of each kind; all of them without a number."""
        kinds: dict[str, list[HeldOut]] = {}
        for prompt in self.held_out:
            kinds.setdefault(prompt.kind, []).append(prompt)
        return [prompt for of_kind in kinds.values() for prompt in of_kind[:per_kind]]

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self)), "utf-8")

    @classmethod
    def load(cls, path: Path) -> Prompts:
        """Read it back. Raises TrainingError."""
        try:
            values = json.loads(path.read_text("utf-8"))
            values["continuations"] = [Continuation(**c) for c in values["continuations"]]
            values["held_out"] = [HeldOut(**h) for h in values["held_out"]]
            return cls(**values)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise TrainingError(
                f"{path} is not a prompt file: {error}. Run the step 'prompts' first."
            ) from None


def catalogue(path: Path = CATALOGUE) -> dict[str, Any]:
    """The hand-written lists in prompts.toml."""
    with path.open("rb") as file:
        return tomllib.load(file)


def expand(lists: dict[str, Any], n: int, seed: int = 0) -> list[str]:
    """Up to n different user prompts; fewer when 20,000 draws gave one that was there already."""
    rng = random.Random(seed)
    kinds, weights = list(lists["weights"]), list(lists["weights"].values())
    found: dict[str, None] = {}
    repeats = 0
    while len(found) < n and repeats < 20000:
        kind = rng.choices(kinds, weights)[0]
        topic, topic2 = rng.sample(lists["topics"], 2)
        character, character2 = rng.sample(lists["characters"], 2)
        a, b = rng.randint(12, 400), rng.randint(12, 400)
        d, e = rng.randint(2, 25), rng.randint(2, 12)
        passage = rng.choice(lists["passages"])
        if kind in SUMMARISED and rng.random() < 0.35:
            sentences = passage.split(". ")[: rng.randint(1, 3)]
            passage = " ".join(sentences).strip().rstrip(".") + "."
        prompt = rng.choice(lists["templates"][kind]).format(
            t=topic,
            t2=topic2,
            p=rng.choice(lists["people"]),
            h=character,
            h2=character2,
            l=rng.choice(lists["languages"]),
            c=rng.choice(lists["programming_tasks"]),
            n=rng.randint(3, 10),
            a=a,
            b=b,
            d=d,
            e=e,
            e2=e + 1,
            x=passage,
        )
        prompt = prompt[0].upper() + prompt[1:]
        if prompt in found:
            repeats += 1
        else:
            found[prompt] = None
    return list(found)


Tokenize = Callable[[str, bool], list[int]]
"""Text, and whether special tokens are recognised in it, to ids."""


def prepare(
    tokenize: Tokenize,
    n_vocab: int,
    form: ChatFormat,
    lists: dict[str, Any],
    *,
    n_prompts: int = 14000,
    n_continuations: int = 3000,
    seed: int = 1,
) -> Prompts:
    """All prompts as tokens. Raises TrainingError when the chat format is not one of the tokenizer."""
    rng = random.Random(seed)
    stops = [_single(tokenize, text) for text in form.stops]
    user_close = tokenize(form.user_close, True)
    next_user = tokenize(form.between + form.user_open, True)
    assistant_close = _single(tokenize, form.assistant_close)
    systems = [lists["default_system"], *lists["systems"], None]
    openings = [tokenize(form.opening(system), True) for system in systems]
    weights = [60, *[3] * len(lists["systems"]), 10]

    asked = [tokenize(text, False) for text in expand(lists, n_prompts)]
    starts = [rng.choices(openings, weights)[0] + tokens + user_close for tokens in asked]
    follow_ups = [tokenize(text, False) for text in lists["follow_ups"]]
    short = [tokens for tokens in asked if len(tokens) < LONGEST_FOLLOW_UP] or asked
    continuations = []
    for _ in range(n_continuations):
        draw = rng.random()
        if draw < 0.35:
            continuations.append(Continuation(next_user, USER))
        else:
            words = rng.choice(follow_ups if draw < 0.70 else short)
            continuations.append(Continuation(next_user + words + user_close, ASSISTANT))
    return Prompts(
        n_vocab=n_vocab,
        openings=openings,
        opening_weights=weights,
        starts=[tokens for tokens in starts if len(tokens) <= LONGEST_START],
        continuations=continuations,
        user_close=user_close,
        assistant_close=assistant_close,
        stops=stops,
        held_out=[
            HeldOut(kind, text, openings[0] + tokenize(text, False) + user_close)
            for kind, texts in lists["evaluation"].items()
            for text in texts
        ],
    )


def _single(tokenize: Tokenize, text: str) -> int:
    tokens = tokenize(text, True)
    if len(tokens) != 1:
        raise TrainingError(
            f"{text!r} is {len(tokens)} tokens in this target's vocabulary. Give the target's own turn marks "
            "with --chat-format."
        )
    return tokens[0]


def check_template(template: str, form: ChatFormat) -> str:
    """A sentence when the target's jinja2 chat template renders a conversation differently; else empty."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    turns = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    try:
        rendered = (
            ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
            .from_string(template)
            .render(messages=turns, add_generation_prompt=True, bos_token="", eos_token="")
        )
    except TemplateError as error:
        return f"The target's chat template does not render here: {error}."
    ours = f"{form.opening('S')}U{form.user_close}".removeprefix(form.start)
    if rendered == ours:
        return ""
    return f"The target's chat template gives {rendered!r}, the chat format in use {ours!r}."
