"""ds4's own server: OpenAI's interface, and signs of life while it reads; its drafts are not told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ds4chat.servers.openai import OpenAI


class Ds4Server(OpenAI):
    """ds4-server. Written from its source."""

    kind = "ds4-server"
    why = (
        "its replies have no word for drafts; MTP runs there at temperature 0 without thinking, where it was "
        "started with --mtp-draft above 1"
    )
    sampling: Mapping[str, str] = {
        "temp": "temperature",
        "top_k": "top_k",
        "top_p": "top_p",
        "min_p": "min_p",
        "seed": "seed",
    }
    fixed: Mapping[str, str] = {
        "depth": "ds4-server reads it only at its start: --mtp-draft N",
        "gate": "ds4-server reads it only at its start: --mtp-margin F, a logit gap there",
        "margin": "ds4-server accepts nothing but the target's own choice",
        "strict": "ds4-server reads it only at its start: --quality",
    }

    def is_of(self, models: list[dict[str, Any]]) -> bool:
        return any(m.get("owned_by") == "ds4.c" for m in models)
