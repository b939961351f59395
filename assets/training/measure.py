"""How well a model reads books it has never seen: exact answers by skill and length, and copying of random tokens.

An answer counts only when greedy decoding would give it token for token, its end token included. Each question is a
fresh conversation on the book, whose keys and values are computed once.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, DynamicCache, LlamaForCausalLM

from assets.tools.bench.recall import RECITED_TOKENS
from assets.tools.books.generated import Question, write_book
from assets.tools.books.quotes import quote_questions
from assets.training.dialogs import FACT, LIST, RECITE, SKILLS, WORDS_PER_TOKEN, answer_ids, compose, held_out_seed
from assets.training.english import babble
from assets.training.tokens import BOS, SPECIALS, Layout
from core.models.hf_attention import cache_argument

ATTENTION = "recipe_causal"


def causal_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, scaling: float, **_: object
) -> tuple[Tensor, None]:
    """Causal attention, right-aligned when keys are cached. transformers builds no mask for it, so gaps in the
    positions are not mistaken for packed sequences. query [B, H, T, D], key and value [B, H, S, D]."""
    num_new, num_keys = query.shape[2], key.shape[2]
    if num_new == num_keys and mask is None:
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
    else:
        if mask is None:
            mask = torch.ones(num_new, num_keys, dtype=torch.bool).tril(num_keys - num_new)
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    return out.transpose(1, 2), None


AttentionInterface.register(ATTENTION, causal_attention)


@dataclass(frozen=True, slots=True)
class Recall:
    """Right answers by skill at one length, and the mean of the answers' shares of right tokens."""

    context_tokens: int
    asked: dict[str, int]
    right: dict[str, int]
    token_accuracy: dict[str, float]


@torch.inference_mode()
def read(model: LlamaForCausalLM, ids: list[int], chunk: int = 2048) -> DynamicCache:
    """Prefill `ids` in chunks; the cache holds all of them."""
    cache = DynamicCache(config=model.config)
    for start in range(0, len(ids), chunk):
        part = torch.tensor([ids[start : start + chunk]])
        positions = torch.arange(start, start + part.shape[1])[None]
        model(part, position_ids=positions, logits_to_keep=1, **{cache_argument(model): cache})
    return cache


@torch.inference_mode()
def answer_hits(model: LlamaForCausalLM, cache: DynamicCache, prompt: list[int], answer: list[int]) -> Tensor:
    """Which tokens of `answer` greedy decoding gives when all before it were right: [len(answer)] bool."""
    start = cache.get_seq_length()
    tokens = torch.tensor([prompt + answer])
    positions = torch.arange(start, start + tokens.shape[1])[None]
    given = {cache_argument(model): cache}
    logits = model(tokens, position_ids=positions, logits_to_keep=len(answer) + 1, **given).logits
    cache.crop(-tokens.shape[1])
    return logits[0, :-1].argmax(-1) == torch.tensor(answer)


def sample_questions(text: str, questions: tuple[Question, ...], num_facts: int, rng: random.Random) -> list[Question]:
    """Some fact questions, half as many about absent facts and quotations, at most 4 lists and 4 recitations."""
    chosen: list[Question] = []
    for kind, count in (("fact", num_facts), ("absent", num_facts // 2), ("list", 4), ("recite", 4)):
        of_kind = [q for q in questions if q.kind == kind]
        chosen += rng.sample(of_kind, min(count, len(of_kind)))
    return chosen + quote_questions(text, num_facts // 2, rng)


def recall(
    model: LlamaForCausalLM,
    layout: Layout,
    context_tokens: int,
    num_books: int,
    facts_per_book: int,
    first_book: int = 0,
) -> Recall:
    """Ask about `num_books` unseen books of about `context_tokens` tokens and as many pieces of babble of that length.

    Recitations count their first 200 tokens.
    """
    asked: dict[str, int] = {}
    right: dict[str, int] = {}
    hits: dict[str, list[float]] = {}
    for index in range(first_book, first_book + num_books):
        seed = held_out_seed(context_tokens * 100 + index)
        rng = random.Random(seed)
        book = write_book(seed, int(context_tokens * WORDS_PER_TOKEN))
        strange = layout.tokenizer.decode(layout.ids(babble(rng, context_tokens // 2))[:context_tokens])
        quotes = [replace(q, kind="quote_any") for q in quote_questions(strange, facts_per_book // 2, rng)]
        for text, questions in (
            (book.text, sample_questions(book.text, book.questions, facts_per_book, rng)),
            (strange, quotes),
        ):
            cache = read(model, layout.opening() + layout.ids(text))
            for question in questions:
                answer = answer_ids(layout, text, question)
                if question.kind == "recite":
                    answer = answer[:RECITED_TOKENS]
                hit = answer_hits(model, cache, layout.turn(question.question, first=True), answer)
                asked[question.kind] = asked.get(question.kind, 0) + 1
                right[question.kind] = right.get(question.kind, 0) + int(hit.all())
                hits.setdefault(question.kind, []).append(float(hit.float().mean()))
    accuracy = {kind: sum(values) / len(values) for kind, values in hits.items()}
    return Recall(context_tokens, asked, right, accuracy)


@torch.inference_mode()
def copying_loss(model: LlamaForCausalLM, layout: Layout, num_tokens: int, seed: int = 0) -> float:
    """Nats a token on the second half of random tokens said twice: the copying skill alone."""
    rng = torch.Generator().manual_seed(seed)
    half = torch.randint(len(SPECIALS), model.config.vocab_size, (1, num_tokens // 2), generator=rng)
    ids = torch.cat([torch.tensor([[layout.mark(BOS)]]), half, half], dim=1)
    logits = model(ids, logits_to_keep=num_tokens // 2).logits[0, :-1]
    return float(F.cross_entropy(logits, half[0, 1:]))


def window_mask(num_tokens: int, sink: int, recent: int) -> Tensor:
    """[T, T] bool: what a streaming cache of `sink` first and `recent` last tokens lets each token see."""
    distance = torch.arange(num_tokens)[:, None] - torch.arange(num_tokens)[None]
    return (distance >= 0) & ((distance < recent) | (torch.arange(num_tokens) < sink)[None])


@torch.inference_mode()
def agreement(
    target: LlamaForCausalLM,
    draft: LlamaForCausalLM,
    layout: Layout,
    *,
    num_documents: int,
    sink: int,
    recent: int,
    num_tokens: int = 2048,
) -> dict[str, float]:
    """How often the draft would be accepted on answers, by skill, the target seeing all and the draft its window.

    `<skill>` is the share of tokens with the same most likely token (acceptance at temperature 0), `<skill>_t1` the
    mean of sum(min(p, q)) (acceptance at temperature 1).
    """
    greedy: dict[int, list[Tensor]] = {FACT: [], LIST: [], RECITE: []}
    overlap: dict[int, list[Tensor]] = {FACT: [], LIST: [], RECITE: []}
    mask = window_mask(num_tokens, sink, recent)[None, None]
    for index in range(num_documents):
        document = compose(layout, held_out_seed(90_000 + index), num_tokens, 0.6)
        if len(document.ids) < num_tokens:
            continue
        ids, skills = torch.tensor([document.ids]), torch.tensor(document.skills[1:])
        p = target(ids).logits[0, :-1].softmax(-1)  # [T - 1, V]
        q = draft(ids, attention_mask=mask).logits[0, :-1].softmax(-1)
        for skill in greedy:
            at = skills == skill
            greedy[skill].append((p[at].argmax(-1) == q[at].argmax(-1)).float())
            overlap[skill].append(torch.minimum(p[at], q[at]).sum(-1))
    found: dict[str, float] = {}
    for skill, values in greedy.items():
        found[SKILLS[skill]] = round(float(torch.cat(values).mean()), 3)
        found[f"{SKILLS[skill]}_t1"] = round(float(torch.cat(overlap[skill]).mean()), 3)
    return found
