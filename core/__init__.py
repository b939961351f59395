"""The engine of TriForce Reader: exact long-context decoding. Knows nothing of Gradio, files or the command line.

Glossary (these words, and no others, in code and in the app):

========================  ==========================================================================================
target                    the model whose distribution the user gets
draft                     the small model with the same tokenizer
full cache                every key and value of the conversation
retrieval cache           the few thousand tokens (budget) of the full cache that the current text attends to, in chunks
streaming cache           sink + recent window of the draft (StreamingLLM, arXiv 2309.17453)
landmark                  the mean key of a chunk, per KV head; chunks are scored by it where no votes are counted
votes                     the attention that each chunk gets from the newest pass; chunks are chosen by them
proposer / verifier       guesses tokens, with distribution `q` / accepts or corrects them, with distribution `p`
guess, verdict            proposed tokens; the verifier's answer to them
accepted, bonus           the accepted prefix of a guess; the one token the verifier adds
level 1                   draft + streaming cache proposes, target + retrieval cache verifies
level 2                   level 1 proposes, target + full cache verifies
gamma1, gamma2            guesses per round at level 1, at level 2
acceptance                accepted / tested guesses, per level (guesses behind the first rejection are not tested)
tokens per full pass      committed tokens / passes over the full cache
prefill, decode           reading the prompt once; writing the answer. Always timed apart
self-draft                a 4-bit copy of the target's linear weights, used in passes over the retrieval cache
sink, recent              the first tokens of the text; the newest ones
========================  ==========================================================================================

Shapes: L layers, H query heads, H_kv key/value heads, G = H / H_kv, T new tokens, S cached tokens, D head_dim,
V vocabulary, B batch (1 in chat), C chunks, g guesses. Keys and values are `[B, H_kv, S, D]` per layer everywhere.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# On Linux torch then asks for pages of 2 MiB: passes over keys and values in memory take 0.93 to 0.95 times as long at
# 24,576 keys (1 row; Qwen2.5-Coder 1.5B, SmolLM2 135M, the shape of Qwen3 0.6B), and memory does not grow (2.1 GB). Two
# cores of an AMD EPYC, 2026-11-26. Read when torch first allocates.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

if TYPE_CHECKING:
    from core.caches.policies import TopChunks as TopChunks
    from core.caches.policies import register_policy as register_policy
    from core.config import DraftConfig as DraftConfig
    from core.config import EngineConfig as EngineConfig
    from core.config import GenerationConfig as GenerationConfig
    from core.config import RetrievalConfig as RetrievalConfig
    from core.config import SamplingParams as SamplingParams
    from core.config import SpeculationConfig as SpeculationConfig
    from core.engine import Engine as Engine
    from core.errors import CoreError as CoreError
    from core.generation.events import Event as Event
    from core.generation.events import Finished as Finished
    from core.generation.events import PrefillProgress as PrefillProgress
    from core.generation.events import RoundDone as RoundDone
    from core.generation.session import Conversation as Conversation
    from core.triforce import TriForce as TriForce

MODULES = {  # the public names, and where each is
    "Conversation": "generation.session",
    "CoreError": "errors",
    "DraftConfig": "config",
    "Engine": "engine",
    "EngineConfig": "config",
    "Event": "generation.events",
    "Finished": "generation.events",
    "GenerationConfig": "config",
    "PrefillProgress": "generation.events",
    "RetrievalConfig": "config",
    "RoundDone": "generation.events",
    "SamplingParams": "config",
    "SpeculationConfig": "config",
    "TopChunks": "caches.policies",
    "TriForce": "triforce",
    "register_policy": "caches.policies",
}
__all__ = list(MODULES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import core` alone loads no torch."""
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"core.{MODULES[name]}"), name)
