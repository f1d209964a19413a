"""``ds4chat config``: show, check and write the settings."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from ds4chat.commands.arguments import Parser, UsageError, add_settings
from ds4chat.commands.running import RUN_ERROR, report
from ds4chat.settings.load import LoadedSettings, Problem, load, merge, read_file
from ds4chat.settings.paths import config_file, folder
from ds4chat.settings.save import document, save
from ds4chat.settings.schema import OPTIONS
from ds4chat.settings.validate import nearest
from ds4chat.text import one_line

ACTIONS = {
    "path": "Print the path of the settings file, or of one of the folders.",
    "show": "Print every setting in force and where it comes from.",
    "defaults": "Print the default settings file, with every key documented.",
    "check": "Report the mistakes in a settings file, yours or FILE.",
    "write": "Write the settings file, with the given options set.",
}
FOLDERS = ("config", "data", "cache", "log")


def parser() -> Parser:
    """The parser of the command."""
    actions = "\n".join(f"  {name:10}{text}" for name, text in ACTIONS.items())
    made = Parser(
        prog="ds4chat config",
        usage="ds4chat config path [config|data|cache|log]\n"
        "       ds4chat config show | defaults | check [FILE] | write   [options]",
        description=f"Settings of ds4chat.\n\n{actions}",
    )
    made.general.add_argument("--force", action="store_true", help="write: overwrite an existing file.")
    add_settings(made)
    return made


def main(argv: Sequence[str]) -> int:
    """Carry out ``ds4chat config``; the exit code. Raises UsageError."""
    given, words = parser().read(argv)
    action, rest = (words[0], words[1:]) if words else ("", [])
    if action not in ACTIONS:
        close = nearest(action, ACTIONS)
        hint = f" Did you mean {close}?" if close else ""
        said = f'"{action}" is not one of them.' if action else "It needs one of them."
        raise UsageError(f"ds4chat config takes path, show, defaults, check or write. {said}{hint}")
    _refuse_others(given, action, rest)
    path = Path(given.config) if given.config else None
    match action:
        case "path":
            return _path(rest[0] if rest else "", path)
        case "show":
            loaded = load(given.settings, path)
            report(loaded, given.config)
            return _show(loaded)
        case "defaults":
            sys.stdout.write(document())
            return 0
        case "check":
            return _check(Path(rest[0]) if rest else path)
        case _:
            return _write(given.settings, path or config_file(), force=given.force)


def _refuse_others(given: Namespace, action: str, rest: Sequence[str]) -> None:
    """Raises UsageError for a word or an option that this action does not take."""
    if len(rest) > (action in ("path", "check")):
        raise UsageError(f'ds4chat config {action} takes no further word "{rest[-1]}".')
    if given.settings and action not in ("show", "write"):
        raise UsageError(f"--{next(iter(given.settings))} goes with show and write, not with {action}.")
    if given.force and action != "write":
        raise UsageError(f"--force goes with write, not with {action}.")
    if given.config and (rest or action == "defaults"):
        raise UsageError(f"ds4chat config {' '.join([action, *rest])} does not use --config: leave it out.")


def _path(name: str, path: Path | None) -> int:
    if name and name not in FOLDERS:
        raise UsageError(f'"{name}" is not a folder of ds4chat: choose config, data, cache or log.')
    print(folder(name) if name else (path or config_file()).absolute())
    return 0


def _show(loaded: LoadedSettings) -> int:
    import tomli_w

    from ds4chat.commands.model_sampling import with_sampling_of_model

    loaded, model = with_sampling_of_model(loaded)
    state = "" if os.path.exists(loaded.config_path) else " (does not exist)"
    print(f"# config file: {loaded.config_path}{state}")
    for option in OPTIONS:
        value = getattr(loaded.settings, option.attribute)
        if option.kind != "table":
            line = tomli_w.dumps({option.key: value}).strip()
            source = loaded.sources[option.key]
            print(f"{line:<40}  # {f'model, {model}' if source == 'model' else source}")
    for option in OPTIONS:
        value = getattr(loaded.settings, option.attribute)
        if option.kind == "table" and value:
            print("\n" + tomli_w.dumps({option.key: value}).strip())
    return 0


def _check(path: Path | None) -> int:
    file = path or config_file()
    read = read_file(file, must_exist=path is not None)
    problems = read.problems
    if "theme" in read.values and (said := _theme_problem(read.values["theme"])):
        problems.append(Problem(said, file=str(file)))
    if "keys" in read.values:
        from ds4chat.tui.actions import unknown_actions

        problems += [Problem(said, file=str(file)) for said in unknown_actions(read.values["keys"])]
    for sentence in (*problems, *read.warnings):
        print(one_line(sentence))
    if problems:
        return RUN_ERROR
    exists = os.path.exists(file)
    print(
        f"{file}: no problems." if exists else f"{file} does not exist: all settings are at their defaults."
    )
    return 0


def _theme_problem(name: str) -> str:
    """What is wrong with the name of a theme; "" if nothing is. Raises FolderError."""
    from textual.theme import BUILTIN_THEMES

    from ds4chat.tui.themes import load_themes, unknown_theme

    themes, _ = load_themes(folder("config") / "themes")
    own = [theme.name for theme in themes]
    return "" if name in own or name in BUILTIN_THEMES else unknown_theme(name, own)


def _write(settings: dict[str, object], path: Path, *, force: bool) -> int:
    read = read_file(path)
    if os.path.exists(path) and not force:
        lost = f", except the invalid ones. {read.problems[0]}" if read.problems else "."
        raise UsageError(f"{path} exists already: --force rewrites it and keeps its values{lost}")
    # Values from the environment are not saved.
    merged, _, _ = merge(read.values, {}, settings)
    save(merged, path, force=force)
    print(path)
    return 0
