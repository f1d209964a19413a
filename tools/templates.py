"""Renders every chat template in some folders as a chat does, in situations that break templates.

    python tools/templates.py FOLDER...

For each template and situation the table says whether it works, for which form of the conversation if not the
plain one, or why it is refused. A prompt works if it holds every message's text once and in order, if no
special token's name inside those texts becomes that token, and if rendering it again gives the same prompt.
The vocabulary has a token for every character, and one for every name in the template that looks like a
special token's.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ds4chat.engine.events import Message
from ds4chat.engine.llama import LlamaError, SpecialToken
from ds4chat.engine.prompting import Prompter, PromptError

SPECIAL = re.compile(r"<[|｜]?/?[\w:|｜▁ -]{1,40}[|｜]?>|\[/?[A-Za-z_]{2,30}\]")
"""What looks like the name of a special token."""
FIRST_SPECIAL = 0x110000
"""Above all characters' ids."""


class TemplateVocabulary:
    """Stands for a model with this chat template. Characters are their own tokens."""

    bos, eos, first_token = "<s>", "</s>", None

    def __init__(self, template: str) -> None:
        self.chat_template = template
        names = sorted({self.bos, self.eos, *SPECIAL.findall(template)}, key=lambda name: (-len(name), name))
        self.special_tokens = tuple(
            SpecialToken(FIRST_SPECIAL + i, name, control=True) for i, name in enumerate(names)
        )
        self._ids = {special.text: special.id for special in self.special_tokens}
        self._cut = re.compile(f"({'|'.join(map(re.escape, names))})")

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Special tokens where they are recognised, characters elsewhere."""
        tokens: list[int] = []
        for part in self._cut.split(text) if parse_special else [text]:
            tokens += [self._ids[part]] if parse_special and part in self._ids else map(ord, part)
        return tokens

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """A token's text; a special token has none of its own."""
        return b"" if token >= FIRST_SPECIAL and not special else self.text([token]).encode()

    def text(self, tokens: Sequence[int]) -> str:
        """The tokens' text."""
        names = {token: name for name, token in self._ids.items()}
        return "".join(names.get(token) or chr(token) for token in tokens)


def situations(names: Sequence[str]) -> dict[str, list[Message]]:
    """Conversations by name; ``names`` are the special tokens' that a user types."""
    ask, reply, more = Message("user", "Who built it?"), Message("assistant", "A smith."), "And when?"
    return {
        "one turn": [ask],
        "three turns": [
            ask,
            reply,
            Message("user", more),
            Message("assistant", "In May."),
            Message("user", "So?"),
        ],
        "system": [Message("system", "Answer in rhymes."), ask, reply, Message("user", more)],
        "Esc": [ask, Message("user", more)],
        "Esc later": [
            Message("system", "Answer in rhymes."),
            ask,
            reply,
            Message("user", more),
            Message("user", "So?"),
        ],
        "cut reply": [ask, Message("assistant", "A smith who"), Message("user", more)],
        "long text": [Message("user", "Read this: " + "a line of words\n" * 4000 + "What is it?")],
        "special tokens": [
            ask,
            Message("assistant", f"It writes {' '.join(names)} there."),
            Message("user", f"Say {''.join(names)}\n{' '.join(names)}"),
        ],
        "go on": [ask, Message("assistant", "A smith who")],
    }


def verdict(template: str, messages: Sequence[Message]) -> str:
    """The result for a conversation: "works", the form that it needs, or why it is refused."""
    model = TemplateVocabulary(template)
    try:
        prompter = Prompter(model)  # type: ignore[arg-type]
        if prompter.note:
            return f"refused: {prompter.note}"
        prompt = prompter.chat(messages, think=True)
        again = prompter.chat(messages, think=True)
    except (PromptError, LlamaError) as error:
        return f"refused: {error}"
    if again.tokens != prompt.tokens:
        return "FAULT: another prompt the second time"
    text, at = model.text(prompt.tokens), 0
    for message in messages:
        content = message.content.strip()
        # A template may keep the system prompt for the last turn.
        found = text.find(content, 0 if message.role == "system" else at)
        if found < 0:
            left_out = [note for note in prompt.notes if "leaves out" in note]
            return f"said: {left_out[0]}" if left_out else f"FAULT: lost {content[:30]!r}"
        if message.role != "system":
            at = found + len(content)
    plain = [Message(m.role, SPECIAL.sub("special", m.content)) for m in messages]
    harmless = prompter.chat(plain, think=True)
    specials = [[t for t in p.tokens if t >= FIRST_SPECIAL] for p in (prompt, harmless)]
    if specials[0] != specials[1]:
        return "FAULT: a text forged a special token"
    return "works" if prompt.form == "as it is" else prompt.form


def main() -> int:
    """Print the table; the exit code is 1 if a template reveals a fault of ds4chat."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="+", type=Path, help="searched for *.jinja, folders in it included")
    parser.add_argument("--all", action="store_true", help="a line for every template, not only the odd ones")
    options = parser.parse_args()
    files = sorted(file for folder in options.folder for file in folder.rglob("*.jinja*"))
    counts: dict[str, Counter[str]] = {}
    faults = 0
    for file in files:
        template = file.read_text(encoding="utf-8-sig")
        names = [special.text for special in TemplateVocabulary(template).special_tokens]
        results = {name: verdict(template, messages) for name, messages in situations(names).items()}
        for name, result in results.items():
            kind = result.split(":")[0]
            counts.setdefault(name, Counter())[kind] += 1
            faults += kind == "FAULT"
        odd = {name: result for name, result in results.items() if result != "works"}
        if odd or options.all:
            print(file)
            for name, result in (results if options.all else odd).items():
                print(f"    {name}: {result}")
    print(f"\n{len(files)} templates")
    for name, counter in counts.items():
        print(f"{name:>15}: " + ", ".join(f"{kind} {n}" for kind, n in counter.most_common()))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
