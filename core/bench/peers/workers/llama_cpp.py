"""Worker: llama.cpp, built from the source in llama-cpp-python's package, through its C interface.

Its example programs for drafts and lookups take text; here prompts are token ids, so the loops are below. As there, a
draft goes on while it is sure, and proposals are verified in one batch.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import llama_cpp as lib
import numpy as np
from safetensors.numpy import load_file

from core.bench.peers.workers.protocol import Clock, Refused, serve

MOST_DRAFTED, LEAST_SURE = 8, 0.75  # of a draft: tokens a round; the least probability with which it goes on
MOST_FOUND, NGRAM = 10, 3  # of a lookup: tokens a round; tokens that must have occurred before
READ_AT_ONCE = 2048
TYPES = {"f32": 0, "f16": 1}  # of ggml


def prepare(request: dict[str, Any]) -> dict[str, Any]:
    """Write target and draft as GGUF files, once."""
    for role in ("target", "draft"):
        file = Path(request["work"]) / f"{role}.gguf"
        if request[role] and not file.exists():
            part = file.with_suffix(".part")
            _convert(Path(request[role]), part)
            part.rename(file)
    return {"version": lib.__version__}


def _convert(folder: Path, file: Path) -> None:
    """A Llama model in float16 with norms in float32, and without a vocabulary: only ids are used."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != "llama" or config.get("rope_scaling"):
        raise Refused("this suite writes GGUF files of plain Llama models only")
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads["q_proj"])
    writer.add_head_count_kv(heads["k_proj"])
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_rope_dimension_count(dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base((config.get("rope_parameters") or config)["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    weights = {name: rows for part in sorted(folder.glob("*.safetensors")) for name, rows in load_file(part).items()}
    for name, rows in weights.items():
        turned = next((number for key, number in heads.items() if f"{key}.weight" in name), None)
        kept = rows if turned is None else interleaved(rows, turned)
        width = np.float32 if kept.ndim == 1 else np.float16
        writer.add_tensor(names.get_name(name, (".weight", ".bias")) or name, np.ascontiguousarray(kept.astype(width)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleaved(rows: Any, heads: int) -> Any:
    """Rows of queries or keys as llama.cpp rotates them: the halves of a head take turns. [H * D, N] -> the same."""
    parts = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return parts.swapaxes(1, 2).reshape(rows.shape)


class Model:
    """A model with its cache of keys and values; `tokens` lie in it."""

    def __init__(self, file: Path, context: int, threads: int, options: dict[str, Any]) -> None:
        self._model = lib.llama_model_load_from_file(str(file).encode(), lib.llama_model_default_params())
        settings = lib.llama_context_default_params()
        settings.n_ctx, settings.n_batch = context, READ_AT_ONCE
        settings.n_threads = settings.n_threads_batch = threads
        settings.type_k = settings.type_v = TYPES[options["kv"]]
        settings.flash_attn_type = int(options["flash_attention"])  # 0: off, 1: on, -1 would be its own choice
        self._context = lib.llama_init_from_model(self._model, settings) if self._model else None
        if not self._context:
            raise Refused("it does not take these weights or settings")
        self._vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))
        self._batch = lib.llama_batch_init(READ_AT_ONCE, 0, 1)
        self.tokens: list[int] = []

    def logits(self, tokens: Sequence[int], count: int = 1) -> Any:
        """Read tokens; the logits behind the last `count` of them, [count, vocabulary] float32."""
        for first in range(0, len(tokens), READ_AT_ONCE):
            part = tokens[first : first + READ_AT_ONCE]
            self._batch.n_tokens = len(part)
            for place, token in enumerate(part):
                self._batch.token[place], self._batch.pos[place] = token, len(self.tokens) + place
                self._batch.n_seq_id[place], self._batch.seq_id[place][0] = 1, 0
                self._batch.logits[place] = first + place >= len(tokens) - count
            if lib.llama_decode(self._context, self._batch):
                raise Refused("it could not compute a batch")
            self.tokens += part
        last = len(part)
        return np.stack([self._row(place) for place in range(last - count, last)])

    def _row(self, place: int) -> Any:
        return np.ctypeslib.as_array(lib.llama_get_logits_ith(self._context, place), (self._vocab,)).copy()

    def keep(self, count: int) -> None:
        """Forget all but the first tokens."""
        if count < len(self.tokens):
            lib.llama_memory_seq_rm(lib.llama_get_memory(self._context), 0, count, -1)
            del self.tokens[count:]


Guess = Callable[[list[int]], list[int]]


def drafted(draft: Model) -> Guess:
    """Guesses of a small model, for as long as it is sure."""

    def guess(text: list[int]) -> list[int]:
        common = next((place for place, (a, b) in enumerate(zip(draft.tokens, text, strict=False)) if a != b), None)
        draft.keep(min(len(draft.tokens), len(text) - 1) if common is None else common)
        found, ahead = list[int](), text[len(draft.tokens) :]
        while len(found) < MOST_DRAFTED:
            row = draft.logits(ahead)[0]
            best = int(row.argmax())
            if 1.0 / np.exp(row - row[best]).sum() < LEAST_SURE:
                break
            found.append(best)
            ahead = [best]
        return found

    return guess


def looked_up() -> Guess:
    """What followed the newest tokens when they occurred last."""
    places, seen = dict[tuple[int, ...], int](), 0

    def guess(text: list[int]) -> list[int]:
        nonlocal seen
        for end in range(max(seen, NGRAM), len(text)):  # the newest tokens themselves are not yet among them
            places[tuple(text[end - NGRAM : end])] = end
        seen = len(text)
        start = places.get(tuple(text[-NGRAM:]))
        return [] if start is None else text[start : start + MOST_FOUND]

    return guess


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Answer the prompt, after a short one."""
    work, options, prompt = Path(request["work"]), request["options"], request["prompt"]
    context = -(-(len(prompt) + request["max_new_tokens"] + 64) // 256) * 256
    target = Model(work / "target.gguf", context, request["threads"], options)
    draft = Model(work / "draft.gguf", context, request["threads"], options) if options["guess"] == "draft" else None
    for text, most in ((prompt[:64], 16), (prompt, request["max_new_tokens"])):
        target.keep(0)
        if draft is not None:
            draft.keep(0)
        guess = drafted(draft) if draft is not None else looked_up() if options["guess"] == "lookup" else None
        answer = _answer(target, guess, text, request["stop"], most)
    return answer


def _answer(target: Model, guess: Guess | None, prompt: list[int], stop: list[int], most: int) -> dict[str, Any]:
    clock = Clock()
    text = [*prompt, int(target.logits(prompt)[0].argmax())]
    clock.arrived()
    while len(text) < len(prompt) + most and text[-1] not in stop:
        room = len(prompt) + most - len(text) - 1
        guessed = guess(text)[:room] if guess else []
        rows = target.logits([text[-1], *guessed], len(guessed) + 1).argmax(1).tolist()
        right = next((n for n, (a, b) in enumerate(zip(guessed, rows, strict=False)) if a != b), len(guessed))
        new = rows[: right + 1]
        end = next((n + 1 for n, token in enumerate(new) if token in stop), len(new))
        text += new[:end]
        clock.arrived(end)
        target.keep(len(text) - 1)
    return clock.answer(text[len(prompt) :])


if __name__ == "__main__":
    serve({"prepare": prepare, "run": run})
