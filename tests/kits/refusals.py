"""Sentences of refusal, as the tests take them apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ds4chat.models.errors import ModelFileError
from ds4chat.models.gguf_file import Header
from ds4chat.models.pairing import check_pair


def reason(call: Callable[[], object]) -> str:
    """The sentence with which a call refuses."""
    with pytest.raises(ModelFileError) as caught:
        call()
    return str(caught.value)


def misfit(target: Header, support: Path) -> str:
    """What stands between "SUPPORT does not fit TARGET:" and what to do about it."""
    sentence = reason(lambda: check_pair(target, support))
    start = f"{support} does not fit {target.path}: "
    end = ". Give the support file that was made for this model."
    assert sentence.startswith(start) and sentence.endswith(end), sentence
    return sentence.removeprefix(start).removesuffix(end)
