"""Measures the saved pair on unseen books: `python assets/training/evaluate.py` prints one JSON line per measurement.

These are the numbers of the model cards. Weights are read from disk (16 bit) and computed with in float32.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from assets.training.measure import ATTENTION, agreement, copying_loss, recall  # noqa: E402
from assets.training.tokens import Layout  # noqa: E402

BOOKS = {1024: (16, 8), 8192: (6, 16), 32000: (3, 24)}  # context tokens: (books, fact questions of each)
FIRST_BOOK = 50  # the books before it are those that training looked at now and then


def load(folder: Path) -> LlamaForCausalLM:
    """A saved model in float32 with the recipe's attention."""
    model: LlamaForCausalLM = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False)
    model.set_attn_implementation(ATTENTION)
    return model.eval()


def main() -> None:
    """Print recall by length, copying, and the agreement of the draft with the target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=ROOT / "assets" / "models")
    parser.add_argument("--contexts", type=lambda text: [int(part) for part in text.split(",")], default=list(BOOKS))
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    target, draft = load(options.models / "harbour-target"), load(options.models / "harbour-draft")
    layout = Layout.load(options.models / "harbour-target")
    for window in (256, 512):
        found = agreement(target, draft, layout, num_documents=16, sink=4, recent=window - 4)
        print(json.dumps({"agreement": found, "window": window}), flush=True)
    print(
        json.dumps({"copying_nats": {n: round(copying_loss(target, layout, n), 3) for n in (1024, 8192)}}), flush=True
    )
    for context in options.contexts:
        started = time.monotonic()
        books, facts = BOOKS.get(context, (3, 24))
        found_recall = recall(target, layout, context, books, facts, FIRST_BOOK)
        record = {
            "context": context,
            "books": books,
            "asked": found_recall.asked,
            "right": found_recall.right,
            "token_accuracy": {kind: round(value, 4) for kind, value in found_recall.token_accuracy.items()},
            "seconds": round(time.monotonic() - started, 1),
        }
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
