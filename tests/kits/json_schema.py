"""The published schema of what the commands print as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "json.schema.json").read_text(encoding="utf-8"))


def validate(document: object, name: str) -> None:
    """Raise unless ``document`` is an object of this name in docs/json.schema.json."""
    jsonschema.validate(document, SCHEMA | {"$ref": f"#/$defs/{name}"})
