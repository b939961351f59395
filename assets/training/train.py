"""Trains the bundled pair: `python assets/training/train.py` (tokenizer, target, draft, export), resumable.

Progress goes to OUT/log.jsonl: loss per skill, recall by length on unseen books, agreement of draft and target.
Stop it at any time; the same command goes on from the last checkpoint.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from assets.training.asking import Asking, train_asking  # noqa: E402
from assets.training.dialogs import Batch, compose, compose_foreign, make_batch, training_seed  # noqa: E402
from assets.training.export import export  # noqa: E402
from assets.training.growth import grow, sharpen  # noqa: E402
from assets.training.measure import agreement, copying_loss, recall, window_mask  # noqa: E402
from assets.training.run import Run, Schedule, by_skill, first_model, next_token_losses, token_losses  # noqa: E402
from assets.training.shapes import DRAFT, TARGET  # noqa: E402
from assets.training.tokens import Layout, train_tokenizer  # noqa: E402

Lengths = tuple[tuple[int, int, int], ...]  # (context tokens, books, facts asked of each book)
CHECK_EVERY = 200  # steps
CHECKED: Lengths = ((1024, 4, 16), (8192, 1, 24))
OUT = Path.home() / ".cache" / "triforce-reader" / "recipe"
SINK, RECENT = 4, 252  # the draft's streaming window in the product


def evaluate(run: Run, lengths: Lengths) -> None:
    """Log recall on unseen books and the copying of random tokens."""
    started = time.monotonic()
    run.model.eval()
    for context, books, facts in lengths:
        found = recall(run.model, run.layout, context, books, facts)
        rates = {kind: f"{found.right[kind]}/{n}" for kind, n in found.asked.items()}
        accuracy = {kind: round(value, 3) for kind, value in found.token_accuracy.items()}
        run.log(event="recall", context=context, right=rates, token_accuracy=accuracy)
    run.log(
        event="copying",
        nats=round(copying_loss(run.model, run.layout, 1024), 3),
        seconds=round(time.monotonic() - started, 1),
    )
    run.model.train()


def train(
    run: Run, minutes: float, loss_of: Callable[[Batch], tuple[Tensor, Tensor]], check: Callable[[], None]
) -> None:
    """Take the steps that are left, or as many as the time allows.

    Args:
        run: what is trained; it goes on from its last step.
        minutes: after which it is saved and left.
        loss_of: from a batch the loss to minimise and the loss of every token [B, T - 1] for the log.
        check: the evaluation of every `CHECK_EVERY` steps.
    """
    deadline = time.monotonic() + 60 * minutes
    last_save = time.monotonic()
    while run.step < run.steps and time.monotonic() < deadline:
        started = time.monotonic()
        leg, step = run.now()
        length = leg.length(step)
        rows = max(1, leg.tokens_per_step // length)
        batch = make_batch(run.layout, leg.first_batch + run.step, rows, length, skip=leg.skip_positions)
        loss, losses = loss_of(batch)
        ended = run.legs_ended
        run.update(loss)
        if run.legs_ended > ended:
            run.keep_weights()
        run.tokens += batch.ids.numel()
        run.seconds += time.monotonic() - started
        if run.step % 10 == 0 or run.step <= 3:
            rate = batch.ids.numel() / (time.monotonic() - started)
            run.log(event="loss", length=length, tokens_per_second=round(rate), **by_skill(losses.detach(), batch))
        if time.monotonic() - last_save > 120 or run.step == run.steps:
            run.save()
            last_save = time.monotonic()
        if run.step % CHECK_EVERY == 0:
            run.model.eval()
            check()
            run.model.train()
    run.save()


def train_target(run: Run, minutes: float) -> None:
    """Learn to read: cross-entropy, answers weighted most."""
    forward = torch.compile(run.model, dynamic=False)  # fuses norms, rotary and MLP: about twice as fast on CPU

    def loss_of(batch: Batch) -> tuple[Tensor, Tensor]:
        losses, weights = token_losses(forward, batch), batch.weights[:, 1:]
        return (losses * weights).sum() / weights.sum(), losses

    train(run, minutes, loss_of, lambda: evaluate(run, CHECKED))


def train_draft(run: Run, target: Run, minutes: float) -> None:
    """Learn to guess the target seeing only what the streaming cache will hold: first from the text, then from it."""
    forward = torch.compile(run.model, dynamic=False)
    teacher = torch.compile(target.model.eval(), dynamic=False)

    def loss_of(batch: Batch) -> tuple[Tensor, Tensor]:
        mask = window_mask(batch.ids.shape[1], SINK, RECENT)[None, None]
        weights = batch.weights[:, 1:]
        logits = forward(batch.ids, attention_mask=mask, position_ids=batch.positions, use_cache=False).logits
        losses = next_token_losses(logits, batch.ids)
        if run.step < DISTIL_FROM * DRAFT_LEGS[0].steps:
            return (losses * weights).sum() / weights.sum(), losses
        with torch.no_grad():
            p = (
                teacher(batch.ids, position_ids=batch.positions, use_cache=False).logits[:, :-1].softmax(-1)
            )  # [B, T, V]
        distance = -(p * logits[:, :-1].log_softmax(-1)).sum(-1)
        return (distance * weights).sum() / weights.sum(), losses

    def check() -> None:
        found = agreement(target.model, run.model, run.layout, num_documents=4, sink=SINK, recent=RECENT)
        run.log(event="agreement", **found)

    train(run, minutes, loss_of, check)


TARGET_LEGS = (
    Schedule(
        steps=1468,
        peak_rate=7e-4,
        warmup=30,
        tokens_per_step=4096,
        stages=(
            (0.272, (512,)),
            (0.817, (1024, 1024, 2048)),
            (0.953, (4096, 2048)),
            (0.994, (8192, 4096)),
            (1.000, (16384, 8192)),
        ),
        circuit_shares=((0.48, 0.07), (1.0, 0.25)),  # faster once the rest of the model uses the circuits
        floors=(0.1, 0.4),  # long documents come last, and it is attention that has to become sharper for them
        skip_positions=True,
    ),
    Schedule(
        steps=880,
        peak_rate=5e-4,
        warmup=20,
        tokens_per_step=4096,
        stages=((0.6, (1024, 2048, 1024, 4096)), (0.88, (2048, 4096, 1024)), (1.0, (8192, 4096, 2048))),
        circuit_shares=((1.0, 0.3),),
        floors=(0.03, 0.1),
        skip_positions=True,
    ),
    Schedule(
        steps=64,
        peak_rate=2e-4,
        warmup=4,
        tokens_per_step=8192,
        stages=((1.0, (8192, 4096)),),
        circuit_shares=((1.0, 0.5),),
        floors=(0.02, 0.02),
        skip_positions=True,
    ),
    Schedule(
        steps=420,
        peak_rate=4e-4,
        warmup=10,
        tokens_per_step=8192,
        stages=((0.8, (4096, 4096, 8192)), (1.0, (8192, 4096, 8192, 4096, 8192, 4096, 8192, 16384))),
        circuit_shares=((1.0, 0.4),),
        floors=(0.02, 0.02),
        skip_positions=True,
    ),
)
DRAFT_LEGS = (
    Schedule(
        steps=600,
        peak_rate=1e-3,
        warmup=30,
        tokens_per_step=2048,
        stages=((1.00, (512, 1024)),),
        circuit_shares=((0.48, 0.07), (1.0, 0.25)),
        floors=(0.1, 0.4),
        skip_positions=False,
    ),
    Schedule(
        steps=900,
        peak_rate=1e-3,
        warmup=20,
        tokens_per_step=2048,
        stages=((1.00, (1024, 512)),),
        circuit_shares=((1.0, 0.3),),
        floors=(0.02, 0.1),
        skip_positions=False,
    ),
    Schedule(
        steps=240,
        peak_rate=5e-4,
        warmup=10,
        tokens_per_step=2048,
        stages=((1.00, (1024, 512)),),
        circuit_shares=((1.0, 0.3),),
        floors=(0.02, 0.1),
        skip_positions=False,
    ),
)
AVERAGED_LEGS = 2  # the last ones; the target is the mean of their ends
ASKINGS = (  # about long books, then about longer ones; after each the target is the mean of before and after
    Asking(
        books=24,
        first=0,
        lengths=(16384, 32768, 16384, 49152),
        foreign_every=5,
        steps_per_book=4,
        short_rows=20,
        long_rows=2,
        batch_tokens=4096,
    ),
    Asking(
        books=20,
        first=1000,
        lengths=(65536, 32768, 122880, 65536, 32768),
        foreign_every=5,
        steps_per_book=4,
        short_rows=20,
        long_rows=2,
        batch_tokens=4096,
    ),
)
GROWN_LEG = Schedule(
    steps=500,
    peak_rate=3e-4,
    warmup=20,
    tokens_per_step=4096,
    stages=((1.0, (4096, 2048, 4096, 4096)),),
    circuit_shares=((1.0, 1.0),),
    floors=(0.03, 0.03),
    skip_positions=True,
    first_batch=100_000,
)
GROWN_SAMPLES, GROWN_SEED, SAMPLE_TOKENS = 4, 4_900_000, 4096  # texts that the growth is calibrated on
DISTIL_FROM = 0.6  # share of the draft's first leg that learns from the text alone, which is twice as fast


def asking_leg(plan: Asking) -> Schedule:
    """The rates of the steps about long books."""
    return Schedule(
        steps=plan.books * plan.steps_per_text,
        peak_rate=2e-4,
        warmup=10,
        tokens_per_step=plan.batch_tokens,
        stages=((1.0, (plan.batch_tokens,)),),
        circuit_shares=((1.0, 0.5),),
        floors=(0.02, 0.02),
        skip_positions=True,
    )


def ask_on(before: Run, plan: Asking, number: int, minutes: float) -> Run:
    """Ask part `number` of the long books; the weights are then the mean of those before and after."""
    model = copy.deepcopy(before.model)
    run = Run(f"asking{number}", model, (asking_leg(plan),), before.layout, before.out)
    kept = before.out / f"asking{number}-start.pt"
    if run.step == 0:
        torch.save(before.model.state_dict(), kept)
    start = torch.load(kept, weights_only=True)  # of this run, whatever `before` has become since
    train_asking(run, plan, minutes)
    ended = run.model.state_dict()
    run.model.load_state_dict({name: (start[name] + ended[name]) / 2 for name in start})
    return run


def grow_on(before: Run, minutes: float) -> Run:
    """The wider target, its blunt heads sharper, and its leg."""
    model = copy.deepcopy(before.model)
    sharpen(model)
    composers = (compose, compose_foreign)
    samples = [
        composers[number % 2](before.layout, training_seed(GROWN_SEED + number), SAMPLE_TOKENS, 0.6).ids
        for number in range(GROWN_SAMPLES)
    ]
    model = grow(model, before.layout, samples, seed=3).train()
    run = Run("grown", model, (GROWN_LEG,), before.layout, before.out)
    train_target(run, minutes)
    return run


def main() -> None:
    """Read the options and train what is not finished yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT, help="folder for checkpoints and log.jsonl")
    parser.add_argument("--target-minutes", type=float, default=100.0, help="stop training the target after this time")
    parser.add_argument("--asking-minutes", type=float, default=150.0, help="stop asking about long books after it")
    parser.add_argument("--grown-minutes", type=float, default=80.0, help="stop training the wider target after it")
    parser.add_argument("--draft-minutes", type=float, default=30.0, help="stop training the draft after this time")
    parser.add_argument("--models", type=Path, default=ROOT / "assets" / "models", help="where the pair is written")
    parser.add_argument("--threads", type=int, default=2, help="fewer than the cores where others compute as well")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(options.threads)
    if not (options.out / "tokenizer").exists():  # its English is that of this Python; a checkpoint knows one only
        train_tokenizer().save_pretrained(options.out / "tokenizer")
    layout = Layout.load(options.out / "tokenizer")
    target = Run("target", first_model(TARGET, layout), TARGET_LEGS, layout, options.out)
    train_target(target, options.target_minutes)
    if target.legs_ended < len(TARGET_LEGS):
        print("The target is not trained to its end: the same command goes on.")
        return
    target.average(AVERAGED_LEGS)
    for number, plan in enumerate(ASKINGS, start=1):
        target = ask_on(target, plan, number, options.asking_minutes / len(ASKINGS))
        if target.step < target.steps:
            print("The asking is not done to its end: the same command goes on.")
            return
    target = grow_on(target, options.grown_minutes)
    if target.step < target.steps:
        print("The wider target is not trained to its end: the same command goes on.")
        return
    draft = Run("draft", first_model(DRAFT, layout), DRAFT_LEGS, layout, options.out)
    train_draft(draft, target, options.draft_minutes)
    if draft.step < draft.steps:
        print("The draft is not trained to its end: the same command goes on.")
        return
    for name, run in (("target", target), ("draft", draft)):
        wrapped = AutoTokenizer.from_pretrained(options.out / "tokenizer", trust_remote_code=False)
        export(run.model, wrapped, options.models / f"harbour-{name}")


if __name__ == "__main__":
    main()
