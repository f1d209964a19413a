"""ds4's own server: OpenAI's interface, and signs of life while it reads the prompt; nothing about drafts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ds4chat.servers.dialect import SAMPLING
from ds4chat.servers.openai import OpenAI


class Ds4Server(OpenAI):
    """ds4-server. Written from its source."""

    kind = "ds4-server"
    why = (
        "its replies do not report drafts; MTP runs there at temperature 0 without thinking, if it was "
        "started with --mtp-draft above 1"
    )
    sampling: Mapping[str, str] = {
        ours: theirs for ours, theirs in SAMPLING.items() if ours != "repeat_penalty"
    }
    fixed: Mapping[str, str] = {
        "depth": "ds4-server reads it only when it starts: --mtp-draft N",
        "gate": "ds4-server reads it only when it starts: --mtp-margin F, a logit gap there",
        "margin": "ds4-server accepts nothing but the target's own choice",
        "strict": "ds4-server reads it only when it starts: --quality",
    }

    def is_kind_of(self, models: list[dict[str, Any]]) -> bool:
        return any(m.get("owned_by") == "ds4.c" for m in models)
