"""``ds4chat get``: find, list and download models from the Hugging Face hub."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ds4chat.commands.arguments import Parser, UsageError
from ds4chat.commands.fetching import fetch_shown
from ds4chat.commands.running import RUN_ERROR
from ds4chat.models.download import FoundRepository, repository, search, support_in
from ds4chat.models.errors import ModelFileError, shown_size
from ds4chat.models.gguf_file import read_header
from ds4chat.models.kinds import describe, kind_of
from ds4chat.models.pairing import check_target
from ds4chat.models.repository import HubModel, Reference, choose, no_models, parse_reference
from ds4chat.text import json_text, one_line


def parser() -> Parser:
    """The parser of the command."""
    made = Parser(
        prog="ds4chat get",
        usage="ds4chat get USER/REPO[:QUANT] [--with-support] [--list] [--json]\n"
        "       ds4chat get --search WORDS [--json]",
        description="Download a model from the Hugging Face hub. Plain USER/REPO lists the repository's\n"
        "models; QUANT is a quantisation, such as Q4_K_M, or the name of a file. Files go to\n"
        "the hub's cache, and an interrupted download resumes where it stopped. HF_TOKEN,\n"
        "HF_ENDPOINT, HF_HUB_CACHE and HF_HUB_OFFLINE apply. Prints the file's path.",
    )
    made.general.add_argument(
        "--search",
        metavar="WORDS",
        help="List repositories with GGUF files, the most downloaded first, and what drafts in them.",
    )
    made.general.add_argument(
        "--with-support",
        action="store_true",
        help="Also download the repository's support file for the model, without asking.",
    )
    made.general.add_argument(
        "--list",
        action="store_true",
        help="List the repository's files, even if there is only one.",
    )
    made.general.add_argument("--json", action="store_true", help="JSON on stdout, one object per line.")
    return made


def main(argv: Sequence[str]) -> int:
    """Carry out ``ds4chat get``; the exit code. Raises UsageError."""
    given, words = parser().read(argv)
    if given.search is not None:
        if words or given.with_support or given.list:
            raise UsageError("--search can only be combined with --json: leave the rest out.")
        if not given.search.strip():
            raise UsageError("--search needs WORDS, such as --search qwen3.")
    elif len(words) != 1:
        raise UsageError("ds4chat get takes one USER/REPO[:QUANT], or --search WORDS.")
    try:
        if given.search is not None:
            _show_found(search(given.search.strip()), given.json)
            return 0
        return _get(parse_reference(words[0]), given)
    except ModelFileError as error:
        if given.json:
            print(json_text({"error": str(error)}))
        raise


def _get(reference: Reference, given: Namespace) -> int:
    json: bool = given.json
    models = repository(reference.repo)
    if given.list or (not reference.wanted and len(models) != 1):
        _show_models(reference.repo, models, json)
        return 0
    chosen = choose(models, reference)
    path = fetch_shown(chosen, json=json)
    header = read_header(path)
    support: list[tuple[HubModel, str]] = []
    problem = ""
    if kind_of(header).whole:
        try:
            check_target(path)
            support = support_in(path, chosen, models)
        except ModelFileError as error:
            problem = str(error)
    if json:
        _print_json(path, describe(header), problem, support)
    else:
        print(path)
        print(problem or f"It is {describe(header)}.", file=sys.stderr)
    if problem:
        return RUN_ERROR
    paths = [path]
    for model, kind in support[:1]:
        if given.with_support or (not json and _agreed(model, kind)):
            paths.append(fetch_shown(model, json=json))
            print(json_text({"path": str(paths[-1]), "drafts": kind}) if json else paths[-1])
        elif not json:
            print(f"It drafts for it ({kind}): ds4chat get {model.reference}", file=sys.stderr)
    if kind_of(header).whole and not json:
        print(f"Start it with: ds4chat -m {' --mtp '.join(map(str, paths))}", file=sys.stderr)
    return 0


def _agreed(model: HubModel, kind: str) -> bool:
    """The user wants the support file too; asked only on a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    size = shown_size(model.size or 0)
    print(f"{model.name} drafts for it ({kind}). Fetch it, too, {size}? [y/N] ", end="", file=sys.stderr)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


# ------------------------------------------------------------------------------------ output


def _show_models(repo: str, models: list[HubModel], json: bool) -> None:
    if not models:
        raise no_models(repo)
    if json:
        print(json_text({"models": [_as_json(model) for model in models]}))
        return
    width = max(len(one_line(model.name)) for model in models)
    for model in models:
        size = shown_size(model.size) if model.size is not None else "?"
        parts = f"{len(model.names)} files" if len(model.names) > 1 else ""
        note = f"{model.missing} parts missing" if model.missing else parts
        row = f"{one_line(model.name):<{width}}  {model.quantisation:<10}  {size:>8}  {note}"
        print(row.rstrip())
    print(f"Fetch one with: ds4chat get {repo}:QUANT, or {repo}:FILE.gguf", file=sys.stderr)


def _as_json(model: HubModel) -> dict[str, Any]:
    """A model of a repository as JSON types."""
    return {
        "name": model.name,
        "files": list(model.names),
        "size_bytes": model.size,
        "quantisation": model.quantisation,
        "missing_parts": model.missing,
        "reference": model.reference,
    }


def _show_found(found: list[FoundRepository], json: bool) -> None:
    if json:
        print(json_text({"repositories": [asdict(one) for one in found]}))
        return
    if not found:
        print("No repository with GGUF files matches these words. Try fewer.", file=sys.stderr)
        return
    width = max(len(one.repo) for one in found)
    for one in found:
        notes = [*one.marks, *(["gated"] if one.gated else [])]
        print(f"{one_line(one.repo):<{width}}  {one.downloads:>11,}  {', '.join(notes)}".rstrip())
    print(
        "Downloads, and the support files there. List a repository with: ds4chat get USER/REPO",
        file=sys.stderr,
    )


def _print_json(path: Path, description: str, problem: str, support: list[tuple[HubModel, str]]) -> None:
    offered = [{**_as_json(model), "drafts": kind} for model, kind in support]
    row = {"path": str(path), "description": description, "problem": problem, "support": offered}
    print(json_text(row))
