"""A selection policy of your own, beside the one that is built in: the text is the same, the acceptance is not.

python -m assets.docs.examples.own_policy assets/books/harbour-32k.txt "Who keeps the lighthouse?"
"""

import sys
from pathlib import Path

import torch
from torch import Tensor

from core import RetrievalConfig, TopChunks, TriForce, register_policy


class StrongestVote(TopChunks):
    """A chunk counts as much as the one query counts it that wants it most; built in, all queries are summed."""

    def score(self, layer: int, num_eligible: int, scaling: float) -> Tensor:
        """[H_kv, num_eligible] float32."""
        landmarks = self.full.landmarks(layer, num_eligible).float()  # [H_kv, C, D]
        queries = self.queries(layer).float()  # [H, W, D]
        queries = queries.reshape(len(landmarks), -1, queries.shape[-1])  # [H_kv, G * W, D]
        return torch.softmax(queries @ landmarks.transpose(1, 2) * scaling, -1).amax(1)


def main(text: str, question: str) -> dict[str, str]:
    """The answer by each policy."""
    register_policy("strongest-vote", StrongestVote)
    answers = {}
    for policy in ("landmark", "strongest-vote"):
        tf = TriForce.from_pretrained("harbour", retrieval=RetrievalConfig(policy=policy))
        answer = tf.answer(text, question, max_new_tokens=64)
        level2 = answer.stats.level2
        print(f"{policy}: {answer.text.strip()!r}, acceptance {level2.acceptance if level2 else None}")
        answers[policy] = answer.text
        tf.engine.close()
    return answers


if __name__ == "__main__":
    main(Path(sys.argv[1]).read_text(encoding="utf-8"), sys.argv[2])
