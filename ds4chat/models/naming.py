"""A model's display name, from the name of its file and its metadata."""

from __future__ import annotations

import re
from pathlib import PurePath

from ds4chat.text import shortened

PART = re.compile(r"-(\d{5})-of-(\d{5})$", re.ASCII)
"""The end of the name of a split model's file, without its suffix: number and count."""
QUANTISATION = re.compile(
    r"(?:^|[-._/])((?:UD[-_])?(?:I?Q[1-8](?:_[0-9A-Z]+)*|TQ[12]_0|BF16|FP?16|F32|MXFP4(?:_MOE)?|NVFP4))"
    r"(?=[-._/]|$)",
    re.IGNORECASE,
)
"""A quantisation in a file's name."""
_SAYS_NOTHING = re.compile(
    r"models?|ggml|gguf|hf|unnamed|untitled|te?mp|merged|output|checkpoint|latest|weights|imat|sha256"
    r"|[0-9a-f]{16,}",
    re.IGNORECASE,
)


def stem_of(path: str) -> str:
    """A file's path without its suffix .gguf."""
    return path[:-5] if path.lower().endswith(".gguf") else path


def display_name(path: str, metadata_name: str = "") -> str:
    """The display name of the model at ``path``, on one printable line: "SmolLM2 135M Instruct".

    ``metadata_name``: its ``general.name``, which a converter often guesses. The file's name is taken, which
    is what the model was published under, without quantisation; but the metadata's where the file's name says
    nothing or nothing more. A word that both have is spelled with the more capitals.
    """
    stem = stem_of(PurePath(path).name)
    file = _words(QUANTISATION.sub("", PART.sub("", stem)))
    named = _words(PurePath(metadata_name.replace("\\", "/")).name)
    spelled = {word.lower(): word for word in named}
    if not file or (named and {word.lower() for word in file} <= spelled.keys()):
        file, named = named, file
        spelled = {word.lower(): word for word in named}
    best = [max(word, spelled.get(word.lower(), word), key=_capitals) for word in file]
    return shortened(" ".join(best) or metadata_name.strip() or stem)


def _words(text: str) -> list[str]:
    """The words of a name; none if it is a hash or generic."""
    words = [word for word in re.split(r"[-_\s]+", text.strip(" .")) if word]
    telling = [w for w in words if not _SAYS_NOTHING.fullmatch(w)]
    letters = sum(char.isalpha() for word in telling for char in word)
    return [w for w in words if w.lower() not in ("ggml", "gguf")] if letters > 1 else []


def _capitals(word: str) -> int:
    return sum(char.isupper() for char in word)
