"""The training loop: AdamW under a cosine schedule, with an exponential moving average of the weights."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from eagle3_training.acceptance import Acceptance, measure
from eagle3_training.data import HeldOutRows, draft_vocabulary, position_weights
from eagle3_training.errors import TrainingError
from eagle3_training.export import save_head
from eagle3_training.generation import Generated, Log
from eagle3_training.head import NORMS, Head, HeadConfig, default_layers, initial_weights
from eagle3_training.kernels import EAGER, compiled
from eagle3_training.objective import Batch, Objective, States, target_states
from eagle3_training.target import Target

FIRST_POSITIONS = 4
"""Left out of the statistics of the layer inputs: the first ones carry outliers."""
STATISTICS_ROWS = 64


@dataclass(frozen=True)
class TrainConfig:
    """What a run may choose; the defaults are those of the shipped head."""

    layers: tuple[int, ...] = ()
    """Layers whose inputs the head reads; empty: the middle, the 70 % and the last one."""
    n_ff: int = 0
    """Width of the head's feed-forward part; 0: the target's."""
    vocabulary: int = 12288
    epochs: float = 25.0
    batch: int = 16
    """Rows a step."""
    peak_rate: float = 3e-3
    output_rate: float = 0.3
    """Learning rate of the output projection, relative to the rest."""
    warmup: int = 300
    floor: float = 0.02
    """Learning rate at the end, relative to the peak."""
    weight_decay: float = 0.01
    clip: float = 1.0
    ema: float = 0.999
    soft: float = 0.6
    step_weights: tuple[float, ...] = (1.0, 0.85, 0.72, 0.61, 0.52)
    """Weight of each draft step in the loss; their number is the number of recursive steps."""
    input_noise: float = 0.03
    """Relative noise on the layer inputs."""
    gap_share: float = 0.15
    """Share of the rows whose positions jump ahead somewhere, so that the head learns the rope's far
    positions from short rows."""
    largest_gap: int = 6000
    keep_states: bool = True
    """Compute the target's states of all rows once and keep them; else anew for every batch."""
    compile: bool = False
    log_every: int = 200
    evaluate_every: int = 1500
    seed: int = 0

    def rate(self, step: int, total: int) -> float:
        """Learning rate of step 0 <= step < total: linear warm-up times a cosine from 1 to ``floor``."""
        cosine = 0.5 * (1 + math.cos(math.pi * step / total))
        return self.peak_rate * min(1, (step + 1) / self.warmup) * (self.floor + (1 - self.floor) * cosine)


@dataclass
class Progress:
    """Running averages at one step of the training."""

    step: int
    seconds: float
    rate: float
    loss: list[float]
    """Of each draft step."""
    acceptance: list[float]
    """Conditional acceptance at each position, on the training rows and by their weights."""


@dataclass
class Result:
    """The trained head (its moving average) and how the training went."""

    head: Head
    history: list[Progress] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    """Total loss of every step."""


def random_positions(
    rows: int, length: int, config: TrainConfig, n_ctx: int, steps: int, device: str
) -> Tensor:
    """Rope positions (rows, length): 0, 1, 2, ..., with a jump of 8 to ``largest_gap`` (log-uniform) at a
    random place in a share of the rows. No position goes past the target's context."""
    positions = torch.arange(length, device=device).repeat(rows, 1)
    largest = min(config.largest_gap, n_ctx - length - steps)
    if config.gap_share <= 0 or largest <= 8:
        return positions
    gap = 8 * torch.exp(torch.rand(rows, device=device) * math.log(largest / 8))
    jumps = torch.rand(rows, device=device) < config.gap_share
    cut = (torch.rand(rows, device=device) * length).long()
    return positions + ((positions >= cut[:, None]) & jumps[:, None]) * gap.long()[:, None]


class _Rows:
    """The training rows, and batches of them in random order without end."""

    def __init__(self, target: Target, data: Generated, layers: tuple[int, ...], config: TrainConfig) -> None:
        self.target, self.layers, self.config = target, layers, config
        self.ids = data.ids.to(target.device)
        source = data.source.to(target.device)
        self.weights = position_weights(self.ids, source)
        self.source = source
        self.states: States | None = None
        if config.keep_states:
            self.states = target_states(target, self.ids, layers)
            self.argmax = self.states.argmax
        else:
            self.argmax = torch.cat(
                [target_states(target, part, ()).argmax for part in torch.split(self.ids, 1024)]
            )

    def sample(self) -> Tensor:
        """Layer inputs of some rows, their first positions left out, float32 (positions, layers * n_embd)."""
        rows = self.ids[:: max(1, len(self.ids) // STATISTICS_ROWS)]
        inputs = target_states(self.target, rows, self.layers).inputs
        return inputs[:, FIRST_POSITIONS:].float().flatten(0, 1)

    def batches(self) -> Iterator[Batch]:
        config, device, n = self.config, self.target.device, len(self.ids)
        order = torch.empty(0, dtype=torch.long, device=device)
        while True:
            if len(order) < config.batch:
                order = torch.randperm(n, device=device)
            chosen, order = order[: config.batch], order[config.batch :]
            ids = self.ids[chosen].long()
            if self.states is not None:
                s = self.states
                states = States(s.inputs[chosen], s.hidden[chosen], s.argmax[chosen])
            else:
                states = target_states(self.target, ids, self.layers)
            if config.input_noise > 0:
                noise = torch.randn_like(states.inputs)
                states = States(
                    states.inputs * (1 + config.input_noise * noise), states.hidden, states.argmax
                )
            rows, length = ids.shape
            positions = random_positions(
                rows, length, config, self.target.shape.n_ctx, len(config.step_weights), device
            )
            yield Batch(ids, states, self.weights[chosen], positions)


def new_head(target: Target, rows: _Rows, config: TrainConfig, always: list[int], log: Log) -> Head:
    """A head of the configured size, its draft vocabulary chosen and its weights taken from the target."""
    vocabulary, coverage = draft_vocabulary(
        rows.ids, rows.source, rows.argmax, target.shape.n_vocab, config.vocabulary, always
    )
    log(f"draft vocabulary: {len(vocabulary)} tokens, {coverage:.1%} of what answers use")
    sample = rows.sample()
    std = sample.std(0).clamp(min=1e-3)
    last_rms = sample[:, -target.shape.n_embd :].pow(2).mean(-1).sqrt().median().item()
    shape = HeadConfig(target.shape, rows.layers, config.n_ff or target.shape.n_ff, len(vocabulary))
    weights = initial_weights(shape, target, vocabulary, std, last_rms, config.seed)
    kernels = compiled() if config.compile else EAGER
    return Head(shape, weights, vocabulary, target, input_scale=1 / std, kernels=kernels)


def _optimiser(head: Head, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW; each group's ``share`` is its learning rate relative to the schedule's."""
    named = dict(head.named_parameters())
    norms = [named.pop(name) for name in NORMS]
    output = named.pop("output")
    decay = config.weight_decay
    groups = [
        {"params": list(named.values()), "weight_decay": decay, "share": 1.0},
        {"params": [output], "weight_decay": decay, "share": config.output_rate},
        {"params": norms, "weight_decay": 0.0, "share": 1.0},
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-10, fused=output.is_cuda)


def train(
    target: Target,
    data: Generated,
    config: TrainConfig,
    *,
    always: list[int],
    out: Path,
    log: Log,
    held_out: HeldOutRows | None = None,
    steps: int | None = None,
) -> Result:
    """Train a head on generated rows; its moving average lands in out/head.npz, also on the way.

    always: tokens that the draft vocabulary holds in any case. steps: instead of config.epochs.
    Raises TrainingError when the rows do not make one batch or the loss is not finite.
    """
    if len(data.ids) < config.batch:
        raise TrainingError(f"There are {len(data.ids)} rows, fewer than one batch of {config.batch}.")
    layers = config.layers or default_layers(target.shape.n_layer)
    if not all(0 <= i < target.shape.n_layer for i in layers):
        raise TrainingError(f"The layers {layers} are not all among the target's {target.shape.n_layer}.")
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(config.seed)
    rows = _Rows(target, data, layers, config)
    head = new_head(target, rows, config, always, log)
    total = steps or max(1, round(config.epochs * len(data.ids) / config.batch))
    log(f"{sum(p.numel() for p in head.parameters()):,} weights, {total} steps, layers {layers}")
    result = Result(head.copy().requires_grad_(False))
    optimiser = _optimiser(head, config)
    objective = Objective(head, target, config.soft, config.step_weights)
    parameters, averaged = list(head.parameters()), [p.data for p in result.head.parameters()]
    running: Tensor | None = None
    losses: list[Tensor] = []  # numbers at the end: reading one here would wait for the GPU
    started = time.perf_counter()
    for step, batch in zip(range(total), rows.batches(), strict=False):
        rate = config.rate(step, total)
        for group in optimiser.param_groups:
            group["lr"] = rate * group["share"]
        loss, figures = objective.loss(batch)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, config.clip)
        optimiser.step()
        keep = min(config.ema, (step + 1) / (step + 10))  # short at first, or the start would linger
        torch._foreach_lerp_(averaged, [p.detach() for p in parameters], 1 - keep)
        running = figures if running is None else running.lerp(figures, 0.02)
        losses.append(loss.detach())
        if (step + 1) % config.log_every == 0 or step + 1 == total:
            values = running.tolist()
            result.history.append(
                Progress(
                    step + 1,
                    time.perf_counter() - started,
                    rate,
                    [v[0] for v in values],
                    [v[1] for v in values],
                )
            )
            _report(result, len(data.ids), config, log)
        if (step + 1) % config.evaluate_every == 0 and step + 1 < total:
            _checkpoint(result, out)
            if held_out is not None:
                log(f"held out: {summary(measure(result.head, target, held_out)['all'])}")
    _checkpoint(result, out)
    result.losses = torch.stack(losses).tolist()
    return result


def _report(result: Result, n_rows: int, config: TrainConfig, log: Log) -> None:
    p = result.history[-1]
    if not all(map(math.isfinite, p.loss)):
        raise TrainingError(f"The loss is not finite at step {p.step}. Lower --peak-rate.")
    log(
        f"step {p.step} (epoch {p.step * config.batch / n_rows:.2f}, {p.seconds:.0f} s) rate {p.rate:.1e} "
        f"loss {_row(p.loss)} acceptance {_row(p.acceptance)}"
    )


def _checkpoint(result: Result, out: Path) -> None:
    save_head(result.head, out / "head.npz")
    (out / "history.json").write_text(json.dumps([asdict(p) for p in result.history]), "utf-8")


def summary(a: Acceptance) -> str:
    """One line: conditional acceptance by position, and tokens a target pass at each depth."""
    return f"acceptance {_row(a.conditional)} tokens per pass {_row(a.tokens_per_pass)}"


def _row(values: list[float]) -> str:
    return " ".join(f"{v:.3f}" for v in values)
