"""The command line: one subcommand a step. Each reads what the one before it wrote into the work folder."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3_training.errors import TrainingError

if TYPE_CHECKING:
    from eagle3_training.target import Target
    from eagle3_training.train import TrainConfig

PROMPTS, DATA, RUN = "prompts.json", "data", "run"

_started = time.perf_counter()


def log(text: str) -> None:
    """A line on stderr with the seconds since the start."""
    print(f"[{time.perf_counter() - _started:7.1f}] {text}", file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> int:
    """Run one step. Returns 0, 1 after an error of the run; a usage error exits with 2."""
    args = _parser().parse_args(argv)
    try:
        args.run(args)
    except TrainingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except ImportError as error:
        print(f"error: {error}. Install what the training needs: pip install torch==2.13.0", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


# ------------------------------------------------------------------------------------ steps


def _prompts(args: argparse.Namespace) -> None:
    from eagle3_training import prompts, reference

    form = prompts.ChatFormat.load(args.chat_format)
    lists = prompts.catalogue(args.catalogue)
    with reference.llama_model(args.target) as model:
        complaint = prompts.check_template(model.chat_template, form) if model.chat_template else ""
        if complaint:
            raise TrainingError(f"{complaint} Describe the target's format in a file for --chat-format.")
        made = prompts.prepare(
            lambda text, special: reference.tokenize(model, text, special),
            model.n_vocab,
            form,
            lists,
            n_prompts=args.prompts,
        )
    args.work.mkdir(parents=True, exist_ok=True)
    made.save(args.work / PROMPTS)
    log(f"{len(made.starts)} prompts, {len(made.continuations)} continuations, {len(made.held_out)} held out")


def _check(args: argparse.Namespace) -> None:
    from eagle3_training import reference
    from eagle3_training.prompts import Prompts

    prompt = Prompts.load(args.work / PROMPTS).held_out[0]
    with reference.llama_model(args.target) as model:
        ids, logits = reference.greedy_text(model, prompt.tokens, args.tokens)
    agreement = reference.compare(_load_target(args), ids, logits)
    print(f"argmax agreement {agreement.argmax:.3f}, KL {agreement.kl:.4f}, over {len(ids)} positions")
    if not agreement.good:
        raise TrainingError(
            "The PyTorch target does not compute what llama.cpp computes from this file, so a head trained "
            "on it would not fit. See the README, 'Another target'."
        )


def _generate(args: argparse.Namespace) -> None:
    from eagle3_training import data
    from eagle3_training.prompts import Prompts

    prompts = Prompts.load(args.work / PROMPTS)
    target = _load_target(args)
    folder = args.work / DATA
    held_out = prompts.held_out_of(args.per_kind)
    data.generate(target, prompts, folder, rows=args.rows, length=args.length, waves=args.waves, log=log)
    data.generate_held_out(target, replace(prompts, held_out=held_out), folder, length=args.held_out_length)
    shares = data.share_by_source(data.load_waves(folder).source)
    log("positions by source: " + ", ".join(f"{name} {share:.1%}" for name, share in shares.items()))


def _train(args: argparse.Namespace) -> None:
    from eagle3_training import acceptance, data
    from eagle3_training.prompts import Prompts
    from eagle3_training.train import TrainConfig, summary, train

    config = _config(args, TrainConfig)
    prompts = Prompts.load(args.work / PROMPTS)
    folder, out = args.work / DATA, args.work / args.name
    greedy = data.load_held_out(folder, "greedy")
    target = _load_target(args)
    result = train(
        target,
        data.load_waves(folder, args.limit),
        config,
        always=prompts.stops,
        out=out,
        log=log,
        held_out=greedy,
        steps=args.steps,
    )
    figures: dict[str, Any] = {}
    for name, rows in (("greedy", greedy), ("sampled", data.load_held_out(folder, "sampled"))):
        measured = acceptance.measure(result.head, target, rows)
        figures[name] = {
            k: {"acceptance": a.conditional, "tokens_per_pass": a.tokens_per_pass}
            for k, a in measured.items()
        }
        log(f"{name}: {summary(measured['all'])}")
    if args.long_rows:
        figures["long"] = acceptance.measure_long(
            result.head, target, prompts, rows=args.long_rows, length=args.long_length
        )
    (out / "held-out.json").write_text(json.dumps(figures, indent=1), "utf-8")
    log(f"wrote {out / 'head.npz'}")


def _export(args: argparse.Namespace) -> None:
    from eagle3_training.export import load_weights, write_gguf

    weights = load_weights(args.work / args.name / "head.npz")
    write_gguf(weights, args.target, args.out, quantisation=args.type, name=args.title, licence=args.licence)
    log(f"wrote {args.out}, {args.out.stat().st_size / 1e6:.1f} MB")


def _evaluate(args: argparse.Namespace) -> None:
    from eagle3_training.evaluate import evaluate, one_shot, table
    from eagle3_training.prompts import catalogue

    prompts = {
        kind: texts[: args.per_kind] for kind, texts in catalogue(args.catalogue)["evaluation"].items()
    }
    run = one_shot(args.target, args.threads)
    tallies = evaluate(run, args.head, prompts, args.depths, max_tokens=args.tokens, done=log)
    print(table(tallies))
    if args.json:
        figures = {d: {k: t.as_json() for k, t in kinds.items()} for d, kinds in tallies.items()}
        args.json.write_text(json.dumps(figures, indent=1), "utf-8")


def _dry_run(args: argparse.Namespace) -> None:
    """Every step but the evaluation, small enough for a CPU: shows that target and installation work."""
    from eagle3_training.prompts import Prompts

    # A few steps have no real warm-up, so the rate stays far below that of a real run.
    train = "--steps 5 --batch 8 --peak-rate 3e-4 --warmup 2 --vocabulary 2048 --log-every 1"
    settings = {
        "generate": ["--rows", "24", "--length", "96", "--waves", "1", "--per-kind", "1"],
        "train": train.split(),
        "export": ["--out", str(args.work / "head.gguf"), "--type", "F16"],
    }
    for step in ("prompts", "check", "generate", "train", "export"):
        log(f"step {step}")
        options = ["--target", str(args.target), "--work", str(args.work), *settings.get(step, [])]
        if step == "prompts" and args.chat_format:
            options += ["--chat-format", str(args.chat_format)]
        if step == "generate":
            prompts = Prompts.load(args.work / PROMPTS).held_out_of(1)
            options += ["--held-out-length", str(max(len(p.tokens) for p in prompts) + 32)]
        inner = _parser().parse_args([step, *options])
        inner.run(inner)


# ------------------------------------------------------------------------------------ options


def _load_target(args: argparse.Namespace) -> Target:
    import torch

    from eagle3_training.target import Target

    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = True
    # bfloat16 products are slow or missing on many CPUs.
    return Target.load(args.target, device=device, dtype=torch.float32 if device == "cpu" else torch.bfloat16)


def _config(args: argparse.Namespace, cls: type[TrainConfig]) -> TrainConfig:
    """The defaults with what the command line gives in their place."""
    names = {f.name for f in fields(cls)}
    given = {k: v for k, v in vars(args).items() if k in names and v is not None}
    return replace(cls(), **given)


def _number(text: str, kind: type[int] | type[float], low: float) -> Any:
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not low <= value < float("inf"):
        noun = "a whole number" if kind is int else "a number"
        raise argparse.ArgumentTypeError(f"{text!r} is not {noun} from {low:g} on")
    return value


def _count(text: str) -> int:
    count: int = _number(text, int, 1)
    return count


def _from_zero(text: str) -> int:
    number: int = _number(text, int, 0)
    return number


def _positive(text: str) -> float:
    number: float = _number(text, float, 1e-12)
    return number


def _layers(text: str) -> tuple[int, ...]:
    return tuple(_from_zero(part) for part in text.split(","))


def _depths(text: str) -> tuple[int, ...]:
    depths = tuple(_count(part) for part in text.split(","))
    if max(depths) > 16:
        raise argparse.ArgumentTypeError("ds4chat drafts at most 16 tokens a step")
    return depths


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="train_support.py", description="Train an EAGLE-3 support model for a small llama-type target."
    )
    steps = parser.add_subparsers(dest="step", required=True, metavar="STEP")

    def step(name: str, run: Any, text: str, *, device: bool = False) -> argparse.ArgumentParser:
        sub = steps.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        sub.add_argument("--target", type=Path, required=True, metavar="GGUF", help="the target model")
        if name != "evaluate":
            sub.add_argument(
                "--work", type=Path, required=True, metavar="DIR", help="folder of this training"
            )
        if device:
            sub.add_argument("--device", help="cuda or cpu; default: cuda where there is one")
        return sub

    sub = step("prompts", _prompts, "Write the prompts as tokens, with the target's own tokenizer.")
    sub.add_argument("--prompts", type=_count, default=14000, help="user prompts to draw (14000)")
    _add_text_options(sub)
    sub = step("check", _check, "Compare the PyTorch target with llama.cpp on one text.", device=True)
    sub.add_argument("--tokens", type=_count, default=100, help="greedy tokens behind the prompt (100)")
    sub = step(
        "generate", _generate, "Let the target write the training data and the held-out answers.", device=True
    )
    sub.add_argument("--rows", type=_count, default=3072, help="conversations at a time (3072)")
    sub.add_argument("--length", type=_count, default=1024, help="tokens of each (1024)")
    sub.add_argument("--waves", type=_count, default=6, help="batches in all; those on disk are kept (6)")
    sub.add_argument(
        "--held-out-length", type=_count, default=640, help="longest held-out prompt and answer (640)"
    )
    sub.add_argument("--per-kind", type=_count, help="held-out prompts of each kind; default: all")
    _add_train_options(step("train", _train, "Train the head on the generated data.", device=True))
    sub = step("export", _export, "Write the trained head as a GGUF.")
    sub.add_argument("--name", default=RUN, help="the training run in the work folder (run)")
    sub.add_argument("--out", type=Path, required=True, metavar="GGUF", help="the file to write")
    sub.add_argument("--type", default="Q8_0", choices=("F32", "F16", "Q8_0", "Q4_0", "Q4_1"), help="(Q8_0)")
    sub.add_argument("--title", default="EAGLE3", help="general.name in the file")
    sub.add_argument("--licence", default="", help="general.license in the file, such as apache-2.0")
    sub = step(
        "evaluate", _evaluate, "Measure acceptance by position through ds4chat on the held-out prompts."
    )
    sub.add_argument("--head", type=Path, required=True, metavar="GGUF", help="the exported head")
    sub.add_argument("--depths", type=_depths, default=(1, 2, 3, 4, 5), help="draft depths (1,2,3,4,5)")
    sub.add_argument("--tokens", type=_count, default=200, help="longest reply (200)")
    sub.add_argument("--per-kind", type=_count, help="prompts of each kind; default: all")
    sub.add_argument(
        "--threads", type=_from_zero, default=0, help="threads of ds4chat; default: its own choice"
    )
    sub.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    sub.add_argument("--catalogue", type=Path, default=_catalogue(), help="prompts; default: prompts.toml")
    sub = step("dry-run", _dry_run, "All steps but 'evaluate', tiny, on the CPU or GPU at hand.")
    sub.add_argument("--chat-format", type=Path, metavar="JSON", help="as for 'prompts'")
    return parser


def _catalogue() -> Path:
    return Path(__file__).parent.parent / "prompts.toml"


def _add_text_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--chat-format", type=Path, metavar="JSON", help="turn marks of the target; default: ChatML"
    )
    sub.add_argument("--catalogue", type=Path, default=_catalogue(), help="prompts; default: prompts.toml")


def _add_train_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--name", default=RUN, help="folder of this run inside the work folder (run)")
    sub.add_argument("--limit", type=_count, help="train on the first so many rows; for trials")
    sub.add_argument("--steps", type=_count, help="stop after so many steps, instead of --epochs")
    sub.add_argument("--layers", type=_layers, help="target layers read; default: middle, 70 %%, last")
    sub.add_argument("--vocabulary", type=_count, help="size of the draft vocabulary (12288)")
    sub.add_argument(
        "--n-ff", type=_count, help="width of the head's feed-forward part; default: the target's"
    )
    sub.add_argument("--epochs", type=_positive, help="passes over the data (25)")
    sub.add_argument("--batch", type=_count, help="rows a step (16)")
    sub.add_argument("--peak-rate", type=_positive, help="learning rate after warm-up (3e-3)")
    sub.add_argument("--warmup", type=_count, help="steps of warm-up (300)")
    sub.add_argument("--log-every", type=_count, help="steps between two log lines (200)")
    sub.add_argument("--evaluate-every", type=_count, help="steps between two held-out measurements (1500)")
    sub.add_argument("--seed", type=_from_zero, help="of the initial weights and the order of rows (0)")
    sub.add_argument(
        "--no-keep-states",
        dest="keep_states",
        action="store_false",
        default=None,
        help="compute the target's states anew for each batch: for data whose states do not fit the memory",
    )
    sub.add_argument("--compile", action="store_true", default=None, help="use torch.compile")
    sub.add_argument(
        "--long-rows", type=_from_zero, default=0, help="conversations for the far-position test (0: none)"
    )
    sub.add_argument("--long-length", type=_count, default=2048, help="their length (2048)")
