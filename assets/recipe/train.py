"""Trains the bundled pair: `python assets/recipe/train.py` (tokenizer, target, draft, export), resumable.

Progress goes to OUT/log.jsonl: loss per skill at every report, recall by length on unseen books at every evaluation.
Stop it at any time; the same command goes on from the last checkpoint.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.modeling_outputs import CausalLMOutputWithPast

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from assets.recipe.dialogs import SKILLS, Batch, make_batch  # noqa: E402
from assets.recipe.export import export  # noqa: E402
from assets.recipe.measure import ATTENTION, copying_loss, recall  # noqa: E402
from assets.recipe.shapes import DRAFT, TARGET, Shape, build, structure, word_rarity  # noqa: E402
from assets.recipe.tokens import VOCAB_SIZE, Layout, train_tokenizer  # noqa: E402


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How long, how fast, and on which lengths. A stage is (share of the steps at its end, lengths drawn from)."""

    steps: int
    peak_rate: float
    warmup: int
    tokens_per_step: int
    stages: tuple[tuple[float, tuple[int, ...]], ...]

    def length(self, step: int) -> int:
        """Tokens per document of this step."""
        for end, lengths in self.stages:
            if step < end * self.steps:
                return lengths[step % len(lengths)]
        return self.stages[-1][1][-1]

    def rate(self, step: int) -> float:
        """Learning rate: linear warm-up, then a cosine down to 4% of the peak."""
        if step < self.warmup:
            return self.peak_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.peak_rate * (0.04 + 0.96 * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


class Run:
    """One model in training with its optimiser, checkpoint file and log."""

    def __init__(self, name: str, shape: Shape, schedule: Schedule, layout: Layout, out: Path) -> None:
        self.name, self.schedule, self.layout, self.out = name, schedule, layout, out
        self.model = build(shape, seed=1)
        structure(self.model, [layout.tokenizer.id_to_token(i) for i in range(VOCAB_SIZE)], word_rarity(layout), seed=2)
        self.model.set_attn_implementation(ATTENTION)
        matrices = [p for p in self.model.parameters() if p.dim() > 1]
        others = [p for p in self.model.parameters() if p.dim() <= 1]
        groups = [{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98), fused=True)
        self.step, self.tokens, self.seconds = 0, 0, 0.0
        self.resume()

    @property
    def checkpoint(self) -> Path:
        """Where this run is kept."""
        return self.out / f"{self.name}.pt"

    def resume(self) -> None:
        """Go on from the checkpoint if there is one."""
        if self.checkpoint.exists():
            state = torch.load(self.checkpoint, weights_only=True)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.tokens, self.seconds = state["step"], state["tokens"], state["seconds"]

    def save(self) -> None:
        """Write the checkpoint; the old one stays until the new one is complete."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        part = self.checkpoint.with_suffix(".part")
        torch.save({**state, "step": self.step, "tokens": self.tokens, "seconds": self.seconds}, part)
        part.replace(self.checkpoint)

    def log(self, **record: object) -> None:
        """Append one JSON line."""
        line = json.dumps({"run": self.name, "step": self.step, "tokens": self.tokens, **record})
        with (self.out / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(line, flush=True)

    def update(self, loss: Tensor) -> None:
        """One clipped optimiser step at the scheduled rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.rate(self.step)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1


def token_losses(model: Callable[..., CausalLMOutputWithPast], batch: Batch) -> Tensor:
    """Cross-entropy of every next token: [B, T - 1] nats."""
    logits = model(batch.ids, position_ids=batch.positions, use_cache=False).logits
    nats = F.cross_entropy(logits.flatten(0, 1), batch.ids.roll(-1, dims=1).flatten(), reduction="none")
    return nats.view(batch.ids.shape)[:, :-1]


def by_skill(losses: Tensor, batch: Batch) -> dict[str, float]:
    """Mean loss of each skill that the batch contains."""
    shown: dict[str, float] = {}
    for number, name in enumerate(SKILLS[1:], start=1):
        chosen = (batch.skills[:, 1:] == number) & (batch.weights[:, 1:] > 0)
        if chosen.any():
            shown[name] = round(float(losses[chosen].mean()), 3)
    return shown


def evaluate(run: Run, lengths: tuple[tuple[int, int, int], ...]) -> None:
    """Log recall on unseen books; each length is (context tokens, books, facts a book)."""
    started = time.monotonic()
    run.model.eval()
    for context, books, facts in lengths:
        found = recall(run.model, run.layout, context, books, facts)
        rates = {kind: f"{found.right[kind]}/{n}" for kind, n in found.asked.items()}
        accuracy = {kind: round(value, 3) for kind, value in found.token_accuracy.items()}
        run.log(event="recall", context=context, right=rates, token_accuracy=accuracy)
    run.log(event="copying", nats=round(copying_loss(run.model, 1024), 3), seconds=round(time.monotonic() - started, 1))
    run.model.train()


def train_target(run: Run, deadline: float) -> None:
    """Train until the schedule or the time is over."""
    schedule, last_save = run.schedule, time.monotonic()
    forward = torch.compile(run.model, dynamic=False)  # fuses norms, rotary and MLP: about twice as fast on CPU
    while run.step < schedule.steps and time.monotonic() < deadline:
        started = time.monotonic()
        length = schedule.length(run.step)
        batch = make_batch(run.layout, run.step, max(1, schedule.tokens_per_step // length), length)
        losses = token_losses(forward, batch)
        weights = batch.weights[:, 1:]
        run.update((losses * weights).sum() / weights.sum())
        run.tokens += batch.ids.numel()
        run.seconds += time.monotonic() - started
        if run.step % 10 == 0 or run.step <= 3:
            rate = batch.ids.numel() / (time.monotonic() - started)
            run.log(event="loss", length=length, tokens_per_second=round(rate), **by_skill(losses.detach(), batch))
        if time.monotonic() - last_save > 120:
            run.save()
            last_save = time.monotonic()
        if run.step % 150 == 0:
            evaluate(run, ((1024, 6, 8), (8192, 1, 16)) if run.step % 450 else ((1024, 6, 8), (8192, 2, 16), (32000, 1, 24)))
    run.save()


def window_mask(num_tokens: int, sink: int, recent: int) -> Tensor:
    """[T, T] bool: what a streaming cache of `sink` first and `recent` last tokens lets each token see."""
    distance = torch.arange(num_tokens)[:, None] - torch.arange(num_tokens)[None]
    return (distance >= 0) & ((distance < recent) | (torch.arange(num_tokens) < sink)[None])


TARGET_SCHEDULE = Schedule(
    steps=1100,
    peak_rate=1e-3,
    warmup=40,
    tokens_per_step=4096,
    stages=(
        (0.09, (512,)),
        (0.30, (1024, 1024, 2048)),
        (0.60, (1024, 2048, 4096)),
        (1.00, (1024, 4096, 8192)),
    ),
)


def main() -> None:
    """Read the options and train what is not finished yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoints and log.jsonl")
    parser.add_argument("--target-minutes", type=float, default=60.0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(2)
    tokenizer = train_tokenizer()
    tokenizer.save_pretrained(options.out / "tokenizer")
    layout = Layout.load(options.out / "tokenizer")
    target = Run("target", TARGET, TARGET_SCHEDULE, layout, options.out)
    train_target(target, time.monotonic() + 60 * options.target_minutes)


if __name__ == "__main__":
    main()
