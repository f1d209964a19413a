"""Command-line parsing on top of argparse: the options of the table, and sentences instead of its errors."""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ds4chat.errors import UserFacingError
from ds4chat.settings.schema import GROUPS, OPTIONS, Option
from ds4chat.settings.validate import SettingError, check, listed, nearest, range_of
from ds4chat.text import one_line

USAGE_ERROR = 2

ELSEWHERE = {
    "--quality": "ds4's exact kernels are --mtp-strict here",
    "--mtp-exact-sampling": "here sampled drafts are always verified exactly, unless --mtp-margin is below 1",
    "--mtp-verify-depth": "that is an option of the tests: pytest --mtp-verify-depth N",
    "--dspark": "the DSpark drafter is not supported here",
    "--draft-max": "it is --mtp-draft here",
    "--draft": "it is --mtp-draft here",
    "--spec-draft-n-max": "it is --mtp-draft here",
    "--model-draft": "it is --mtp here",
    "-md": "it is --mtp here",
    "--spec-type": "the kind of drafter is read from the support file: name it with --mtp",
}
"""Options of ds4 and llama.cpp that have another name here."""


class UsageError(UserFacingError):
    """The command line, or a file that it names, is wrong. Exit code 2."""


class Parser(argparse.ArgumentParser):
    """An argparse parser without abbreviations that raises UsageError with a sentence for every error."""

    def __init__(self, **more: Any) -> None:
        # Ask for the width once: argparse asks again for each formatter.
        width = min(shutil.get_terminal_size().columns, 100)
        super().__init__(
            allow_abbrev=False,
            add_help=False,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(
                prog, max_help_position=28, width=width
            ),
            **more,
        )
        self.general = self.add_argument_group("General")
        self.general.add_argument("-h", "--help", action="help", help="Show this help and exit.")

    @property
    def spellings(self) -> dict[str, argparse.Action]:
        """Every option string with its action."""
        return self._option_string_actions

    def read(self, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """The options that were given, and the remaining words. Raises UsageError."""
        given, words = list(argv), []
        if "--" in given:
            cut = given.index("--")
            given, words = given[:cut], given[cut + 1 :]
        given = self._bind_text(given)
        for word in given:
            self._refuse_single_dash(word)
        namespace = argparse.Namespace(settings={})
        namespace, rest = self.parse_known_args(given, namespace)
        for word in rest:
            if word.startswith("-") and len(word) > 1:
                raise UsageError(self.unknown(word))
        if namespace.settings.get("demo") and namespace.settings.get("model"):
            raise UsageError("--demo and -m both name the model: leave one of them out.")
        if namespace.settings.get("server") and (
            namespace.settings.get("demo") or namespace.settings.get("model")
        ):
            raise UsageError("--server comes with its own model: leave out -m and --demo, or --server.")
        return namespace, rest + words

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print a help or the version. Raises OSError, which argparse would swallow."""
        print(message, end="", file=file)

    def unknown(self, word: str) -> str:
        """The sentence for an unknown option, with the most similar known one."""
        name = word.split("=", 1)[0]
        if name in ELSEWHERE:
            return f"{name} is not an option of ds4chat: {ELSEWHERE[name]}."
        close = nearest(name, self.spellings)
        hint = f"did you mean {close}? " if close else ""
        return f"{name} is not an option; {hint}{self.prog} -h lists them."

    def error(self, message: str) -> NoReturn:
        """Raises UsageError with argparse's message as a sentence."""
        raise UsageError(self._sentence(message))

    def _sentence(self, message: str) -> str:
        at = re.match(r"argument (\S+): (.*)", message, re.DOTALL)
        if not at:
            return f"{message[:1].upper()}{message[1:]}."
        names, what = at[1], at[2]
        action = self.spellings.get(names.split("/", 1)[0])
        metavar = action.metavar if action and isinstance(action.metavar, str) else "a value"
        if what.startswith("expected one argument"):
            dash = f" (one that begins with a dash is written {names.split('/')[-1]}={metavar})"
            return f"{names} needs {metavar}{dash if metavar in ('FILE', 'TEXT') else ''}."
        if action and action.choices and (wrong := re.match(r"invalid choice: '(.*)' \(choose", what)):
            return f"{names} {one_line(wrong[1])} is not known: it takes {listed(tuple(action.choices))}."
        if what.startswith("ignored explicit argument"):
            return f"{names} takes no value."
        return f"{names}: {what}."

    def _bind_text(self, given: list[str]) -> list[str]:
        """The arguments with texts that begin with a dash, such as a prompt "- one thing", joined to their
        options: argparse would take such a text for an option."""
        bound: list[str] = []
        words = iter(given)
        for word in words:
            action = self.spellings.get(word)
            following = next(words, None) if action and action.metavar == "TEXT" else None
            if action is None or following is None:
                bound.append(word)
            elif following.startswith("-") and following.split("=", 1)[0] not in self.spellings:
                bound.append(f"{action.option_strings[-1]}={following}")
            else:
                bound += [word, following]
        return bound

    def _refuse_single_dash(self, word: str) -> None:
        """``-mtp`` would be read as ``-m tp``, and ``-temp`` as ``-t emp``."""
        name = word.split("=", 1)[0]
        if name.startswith("-") and not name.startswith("--") and name not in self.spellings:
            if f"-{name}" in self.spellings:
                raise UsageError(f"{name} is not an option; did you mean -{name}?")
            if name in ELSEWHERE:
                raise UsageError(self.unknown(name))


class _Setting(argparse.Action):
    """Checks an option's value and stores it in ``namespace.settings`` by key."""

    def __init__(self, option_strings: Sequence[str], dest: str, option: Option, **more: Any) -> None:
        self.option = option
        super().__init__(option_strings, dest, default=argparse.SUPPRESS, **more)

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, name: Any = None
    ) -> None:
        raw = values
        if self.option.kind == "bool":
            raw = not (str(name).startswith("--no-") or name in self.option.off_flags)
        elif raw is None:
            raw = self.option.optional_value
        try:
            namespace.settings[self.option.key] = check(self.option, raw)
        except SettingError as error:
            raise UsageError(str(error).replace(f"--{self.option.key} ", f"{name} ", 1)) from None


def add_prompt(group: Any) -> None:
    """Add the options for a prompt and its answer."""
    group.add_argument("-p", "--prompt", metavar="TEXT", help="The prompt; text from a pipe is appended.")
    group.add_argument(
        "--prompt-file",
        metavar="FILE",
        help="A UTF-8 file or pipe with the prompt; - is stdin.",
    )
    group.add_argument("--json", action="store_true", help="One JSON object on stdout instead of the text.")
    group.add_argument(
        "--raw", action="store_true", help="Send the prompt as it is, without a chat template."
    )
    group.add_argument("--ignore-eos", action="store_true", help="Continue past end tokens.")


def add_hub_model(parser: Parser) -> None:
    """Add ``-hf``, which names a model on the Hugging Face hub instead of -m."""
    parser.general.add_argument(
        "-hf",
        "--hf-repo",
        metavar="USER/REPO[:QUANT]",
        help="Target from the Hugging Face hub, downloaded into its cache if it is not there yet; without "
        "QUANT, Q4_K_M, Q8_0 or the first file.",
    )


def add_settings(parser: Parser, groups: Sequence[str] = tuple(GROUPS)) -> None:
    """``--config`` and every option of the table, or of these groups; values land in ``namespace.settings``,
    checked."""
    parser.general.add_argument("--config", metavar="FILE", help="Settings file, instead of your own.")
    for name in groups:
        group = parser.add_argument_group(GROUPS[name])
        for option in OPTIONS:
            if option.group == name and option.kind != "table":
                _add_setting(group, option)


def _add_setting(group: Any, option: Option) -> None:
    names = (*option.flags, f"--{option.key}")
    common = {"action": _Setting, "dest": f"setting {option.key}", "option": option, "help": help_of(option)}
    metavar = option.metavar or ("|".join(option.choices) if _is_short(option) else "TYPE")
    if option.kind == "bool":
        group.add_argument(*names, *option.off_flags, f"--no-{option.key}", nargs=0, **common)
    elif option.optional_value:
        group.add_argument(f"--{option.key}", nargs="?", metavar=metavar, **common)
        # The other spellings always need a file.
        common["help"] = f"As --{option.key} {metavar}."
        group.add_argument(*option.flags, metavar=metavar, **common)
    else:
        group.add_argument(*names, metavar=metavar, **common)


def help_of(option: Option) -> str:
    """The help of an option, with its range, default and variable in brackets."""
    facts: list[str] = []
    if option.choices and not _is_short(option):
        facts.append(", ".join(option.choices))
    if option.kind in ("int", "float"):
        facts.append(range_of(option))
    if option.shown_default:
        facts.append(f"default {option.shown_default}")
    if option.env:
        facts.append(option.env + (" wins" if option.env_wins else ""))
    text = option.help + (f" [{'; '.join(facts)}]" if facts else "")
    return text.replace("%", "%%")


def _is_short(option: Option) -> bool:
    return option.kind == "choice" and len("|".join(option.choices)) <= 24


def checked(option: Option) -> Callable[[str], Any]:
    """An argparse ``type`` for an option that is not a setting. Raises UsageError."""

    def convert(raw: str) -> Any:
        try:
            return check(option, raw)
        except SettingError as error:
            raise UsageError(str(error)) from None

    return convert
