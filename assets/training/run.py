"""One model in training: schedule, optimiser, checkpoint, log and the loss of every skill."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast

from assets.training.circuits import structure, word_rarity
from assets.training.dialogs import SKILLS, Batch
from assets.training.measure import ATTENTION
from assets.training.shapes import Shape, build
from assets.training.tokens import VOCAB_SIZE, Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One leg of the training: how long, how fast, and on which lengths.

    Embeddings, attention and norms start as circuits whose scores are balanced to a few nats. AdamW moves every weight
    by about the rate in every step, however small it is, so they learn at a share of it.

    A stage is (share of the steps at its end, lengths in turn).

    `circuit_shares`: (share of the steps at its end, rate of the circuits as a share of the rate).
    `first_batch`: added to the number of the step, so that other documents are seen than in earlier runs.
    `floors`: of the peak rate, where the cosine ends, for most weights and for the circuits.
    `skip_positions`: teach far positions by leaving gaps; not for a model that only ever sees a short window.
    """

    steps: int
    peak_rate: float
    warmup: int
    tokens_per_step: int
    stages: tuple[tuple[float, tuple[int, ...]], ...]
    circuit_shares: tuple[tuple[float, float], ...]
    floors: tuple[float, float]
    skip_positions: bool
    first_batch: int = 0

    def circuit_share(self, step: int) -> float:
        """What embeddings, attention and norms get of the rate at this step."""
        return next(
            (share for end, share in self.circuit_shares if step < end * self.steps), self.circuit_shares[-1][1]
        )

    def length(self, step: int) -> int:
        """Tokens per document of this step."""
        for end, lengths in self.stages:
            if step < end * self.steps:
                return lengths[step % len(lengths)]
        return self.stages[-1][1][-1]

    def rate(self, step: int, floor: float) -> float:
        """Learning rate: linear warm-up, then a cosine down to `floor` of the peak."""
        if step < self.warmup:
            return self.peak_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.peak_rate * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


def first_model(shape: Shape, layout: Layout) -> LlamaForCausalLM:
    """An untrained model with the starting circuits."""
    model = build(shape, seed=1)
    pieces = [layout.tokenizer.id_to_token(i) for i in range(VOCAB_SIZE)]
    structure(model, pieces, word_rarity(layout), seed=2)
    model.set_attn_implementation(ATTENTION)
    return model


class Run:
    """One model in training with its optimiser, checkpoint file and log."""

    def __init__(
        self,
        name: str,
        model: LlamaForCausalLM,
        legs: tuple[Schedule, ...],
        layout: Layout,
        out: Path,
    ) -> None:
        """`model` is trained in place: those of its parameters that require a gradient."""
        self.name, self.legs, self.layout, self.out, self.model = name, legs, layout, out, model
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        free = {name: p for name, p in named.items() if "mlp" in name or "lm_head" in name}
        circuit = {name: p for name, p in named.items() if name not in free}
        groups = [
            {"params": list(free.values()), "weight_decay": 0.01},
            {"params": list(circuit.values()), "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98), fused=True)
        self.step, self.tokens, self.seconds = 0, 0, 0.0
        self.resume()

    @property
    def steps(self) -> int:
        """Steps of all legs."""
        return sum(leg.steps for leg in self.legs)

    def now(self) -> tuple[Schedule, int]:
        """The leg of the next step, and the step's number within it."""
        step = self.step
        for leg in self.legs[:-1]:
            if step < leg.steps:
                return leg, step
            step -= leg.steps
        return self.legs[-1], step

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

    @property
    def legs_ended(self) -> int:
        """Legs of which every step was taken."""
        return sum(self.step >= sum(leg.steps for leg in self.legs[: n + 1]) for n in range(len(self.legs)))

    def _end_of(self, leg: int) -> Path:
        return self.out / f"{self.name}-leg{leg}.pt"

    def keep_weights(self) -> None:
        """Write the weights as they are at the end of a leg, for `average`."""
        torch.save(self.model.state_dict(), self._end_of(self.legs_ended))

    def average(self, legs: int) -> None:
        """Set the weights to the mean of those at the ends of the last `legs` legs.

        Every leg ends somewhere else in the same valley, and the mean forgets what single legs drifted to (model soups,
        arXiv 2203.05482; stochastic weight averaging, arXiv 1803.05407).
        """
        ends = [torch.load(self._end_of(self.legs_ended - n), weights_only=True) for n in range(legs)]
        self.model.load_state_dict({name: sum(end[name] for end in ends) / legs for name in ends[0]})

    def log(self, **record: object) -> None:
        """Append one JSON line."""
        line = json.dumps({"run": self.name, "step": self.step, "tokens": self.tokens, **record})
        with (self.out / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(line, flush=True)

    def update(self, loss: Tensor) -> None:
        """One clipped optimiser step at the scheduled rate."""
        self.zero_gradients()
        loss.backward()
        self.step_on()

    def zero_gradients(self) -> None:
        """Forget the gradients of the last step; whatever is backpropagated from here on adds up until `step_on`."""
        self.optimizer.zero_grad(set_to_none=True)

    def step_on(self) -> None:
        """Clip the gradients and step at the scheduled rate."""
        leg, step = self.now()
        shares = (1.0, leg.circuit_share(step))
        for group, share, floor in zip(self.optimizer.param_groups, shares, leg.floors, strict=True):
            group["lr"] = share * leg.rate(step, floor)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1


def next_token_losses(logits: Tensor, ids: Tensor) -> Tensor:
    """Cross-entropy of every next token, [B, T - 1] nats, from logits [B, T, V] and ids [B, T]."""
    nats = F.cross_entropy(logits.flatten(0, 1), ids.roll(-1, dims=1).flatten(), reduction="none")
    return nats.view(ids.shape)[:, :-1]


def token_losses(model: Callable[..., CausalLMOutputWithPast], batch: Batch) -> Tensor:
    """Cross-entropy of every next token of a batch under full attention: [B, T - 1] nats."""
    logits = model(batch.ids, position_ids=batch.positions, use_cache=False).logits
    assert logits is not None
    return next_token_losses(logits, batch.ids)


def by_skill(losses: Tensor, batch: Batch) -> dict[str, float]:
    """Mean loss of each skill that the batch contains."""
    shown: dict[str, float] = {}
    for number, name in enumerate(SKILLS[1:], start=1):
        chosen = (batch.skills[:, 1:] == number) & (batch.weights[:, 1:] > 0)
        if chosen.any():
            shown[name] = round(float(losses[chosen].mean()), 3)
    return shown
