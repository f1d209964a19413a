"""Constructed models with another chat template."""

from __future__ import annotations

from pathlib import Path

import tiny
from tiny import vocab


def with_template(template: str, path: Path, folder: Path) -> Path:
    """The constructed target with another chat template."""
    good, old, new = tiny.build("llama", folder).read_bytes(), vocab.CHAT_TEMPLATE.encode(), template.encode()
    assert good.count(old) == 1
    assert len(new) <= len(old)
    path.write_bytes(good.replace(old, new + b" " * (len(old) - len(new))))
    return path
