"""The command ``inspect``: what a model file is, and whether two of them pair, from their headers only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from ds4chat.commands.arguments import Parser, UsageError, add_settings
from ds4chat.commands.running import report, settings_of
from ds4chat.models import tokenizer
from ds4chat.models.architectures import abilities
from ds4chat.models.demo import demo_model, demo_support
from ds4chat.models.errors import ModelFileError, shown_size
from ds4chat.models.gguf_file import Header, read_header
from ds4chat.models.kinds import describe, kind_of
from ds4chat.models.pairing import EMBEDDED, check_pair, check_target
from ds4chat.models.sanity import check_metadata
from ds4chat.models.summary import dominant_type, file_type, nextn_layers, quantisation, trunk_layers
from ds4chat.text import counted, json_text, one_line, shortened


@dataclass(frozen=True, slots=True)
class FileReport:
    """One file. Missing counts are None, missing texts "". ``problem``: why it cannot be run, or ""."""

    path: str
    kind: str
    description: str
    name: str
    architecture: str
    size_bytes: int
    parts: int
    parameters: int
    quantisation: str
    dominant_type: str
    file_type: str
    context_length: int | None
    layers: int | None
    nextn_blocks: int
    width: int | None
    vocabulary: int | None
    tokenizer: str
    chat_template: bool
    rollback: str
    problem: str


@dataclass(frozen=True, slots=True)
class PairReport:
    """Whether the two files pair. ``kind``: how the support file drafts, "" if they do not fit; ``reason``:
    why they do not, or why the pair must not be run; ``notes``: warnings."""

    fits: bool
    kind: str
    reason: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """The result of ``inspect``. ``support`` and ``pair`` are None if one file was given."""

    model: FileReport
    support: FileReport | None = None
    pair: PairReport | None = None


def inspect_files(target_path: str | Path, support_path: str | Path | None = None) -> Report:
    """What one file is or, with a support file (or "embedded"), whether the two pair.

    Raises ModelFileError when a file cannot be read. A file that can be read but not run, and a pair that
    does not fit, are described in the report.
    """
    model = read_header(target_path)
    if support_path is None:
        return Report(_file(model))
    support = None if support_path == EMBEDDED else read_header(support_path)
    return Report(_file(model), None if support is None else _file(support), _pair(model, support_path))


def render(report: Report) -> str:
    """The report for people: aligned lines, a paragraph for each file and one for the pair."""
    paragraphs = [_lines(report.model)]
    if report.support:
        paragraphs.append(_lines(report.support))
    if report.pair:
        paragraphs.append(_verdict(report.pair))
    return "\n\n".join(paragraphs)


def parser() -> Parser:
    """The parser of the command."""
    made = Parser(
        prog="ds4chat inspect",
        usage="ds4chat inspect FILE [SUPPORT] [--json]\n       ds4chat inspect --demo [--json]\n"
        "       ds4chat inspect --server URL [--json]",
        description="Say what a GGUF file is, what it can be used for, and whether SUPPORT pairs with\n"
        'it; "embedded" is the NextN block inside FILE. Reads headers only.\n'
        "With --server: what it is, what it reports of its drafts, what a request sets.",
    )
    made.general.add_argument("--demo", action="store_true", help="Inspect the demo's files.")
    made.general.add_argument("--json", action="store_true", help="JSON on stdout instead of text.")
    add_settings(made, ("servers",))
    return made


def main(argv: list[str]) -> int:
    """Carry out ``ds4chat inspect``; the exit code: 1 if two files do not pair. Raises UsageError, and
    ModelFileError for a file that cannot be read."""
    given, words = parser().read(argv)
    if given.settings.get("server"):
        if given.demo or words:
            raise UsageError("--server inspects a server: leave out FILE and --demo.")
        loaded = settings_of(given)
        report(loaded, given.config)
        from ds4chat.commands.inspect_server import run as run_server

        return run_server(loaded.settings, given.json)
    if given.demo and words:
        raise UsageError("--demo inspects the demo's files: leave out FILE, or --demo.")
    if not given.demo and not 1 <= len(words) <= 2:
        raise UsageError("ds4chat inspect takes FILE and optionally SUPPORT; or --demo.")
    if given.demo:
        found = inspect_files(demo_model(), demo_support())
    else:
        found = inspect_files(*words)
    print(json_text(asdict(found), ascii_only=True, indent=2) if given.json else render(found))
    return 0 if found.pair is None or found.pair.fits else 1


def _file(header: Header) -> FileReport:
    declared = header.own_integer("block_count") if header.architecture else None
    pre = header.text("tokenizer.ggml.pre")
    return FileReport(
        path=one_line(header.path),
        kind=kind_of(header).name,
        description=describe(header),
        name=header.text("general.name"),
        architecture=header.architecture,
        size_bytes=header.file_size,
        parts=len(header.parts),
        parameters=header.n_parameters,
        quantisation=quantisation(header),
        dominant_type=dominant_type(header),
        file_type=file_type(header),
        context_length=header.own_integer("context_length"),
        layers=None if declared is None else trunk_layers(header),
        nextn_blocks=nextn_layers(header),
        width=header.own_integer("embedding_length"),
        vocabulary=tokenizer.vocabulary_size(header),
        tokenizer=" ".join(filter(None, (header.text("tokenizer.ggml.model"), pre and f"({pre})"))),
        chat_template=bool(header.text("tokenizer.chat_template")),
        rollback=abilities(header.architecture).rollback,
        problem=_problem(header),
    )


def _problem(header: Header) -> str:
    """Why llama.cpp cannot run this file in the role of its kind, or ""."""
    try:
        check_metadata(header)
        if kind_of(header).whole:
            check_target(header.path)
    except ModelFileError as error:
        return str(error)
    return ""


def _pair(model: Header, support_path: str | Path) -> PairReport:
    try:
        pair = check_pair(check_target(model.path), support_path)
    except ModelFileError as error:
        return PairReport(False, "", str(error), ())
    return PairReport(True, pair.kind, pair.off_reason, pair.notes)


def _lines(report: FileReport) -> str:
    trunk = report.layers if report.kind not in ("nextn-support", "gemma4-assistant") else None
    blocks = [
        "" if trunk is None else counted(trunk, "layer"),
        counted(report.nextn_blocks, "NextN block") if report.nextn_blocks else "",
    ]
    quant = report.quantisation
    if report.file_type and report.dominant_type != report.file_type:
        quant += f" (mostly {report.dominant_type})"
    parts = f" in {report.parts} files" if report.parts > 1 else ""
    rows = (
        ("kind", f"{report.kind}: {report.description}"),
        ("name", shortened(report.name, 200)),
        ("architecture", shortened(report.architecture)),
        ("size", f"{shown_size(report.size_bytes)}{parts}, {_count(report.parameters)} parameters"),
        ("quantisation", quant),
        ("context", "" if report.context_length is None else f"{report.context_length:,} tokens"),
        ("blocks", ", ".join(filter(None, blocks))),
        ("width", "" if report.width is None else f"{report.width:,}"),
        ("vocabulary", _vocabulary(report)),
        ("chat template", "yes" if report.chat_template else "no"),
        ("problem", report.problem),
    )
    return "\n".join([report.path, *(f"  {label:<15}{text}" for label, text in rows if text)])


def _vocabulary(report: FileReport) -> str:
    if report.vocabulary is None:
        return ""
    tokens = f"{report.vocabulary:,} tokens"
    return f"{tokens}, {shortened(report.tokenizer)}" if report.tokenizer else tokens


def _verdict(pair: PairReport) -> str:
    if not pair.fits:
        return f"They do not pair. {pair.reason}"
    lines = [f"They pair: {pair.kind}."]
    if pair.reason:
        lines.append(f"Speculation stays off anyway: {pair.reason}.")
    return "\n".join([*lines, *pair.notes])


def _count(n: int) -> str:
    """A count with its magnitude: "135 M"."""
    for exponent, unit in ((9, "B"), (6, "M"), (3, "K")):
        if n >= 10**exponent:
            return f"{n / 10**exponent:.3g} {unit}"
    return str(n)
