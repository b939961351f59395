"""Tiny models as GGUF files, as llama.cpp's converter lays them out, and the same weights as a folder. Needs gguf."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

from tests.thinkers import MERGES, ROLES, tokenizer

KINDS = {"F16": gguf.GGMLQuantizationType.F16, "Q8_0": gguf.GGMLQuantizationType.Q8_0}
SIZES: dict[str, Any] = {
    "vocab_size": 288,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.4,
    "bos_token_id": None,
}
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES, head_dim=16, tie_word_embeddings=False),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=True),
}
TEMPLATE = "{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"


def write_pair(folder: Path, family: str, kind: str) -> tuple[Path, Path]:
    """A file, and a folder with exactly the weights that it holds: rounded as the file's type rounds them."""
    torch.manual_seed(5)
    config = CONFIGS[family]
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("norm.weight", ".bias")):
                parameter.add_(0.1 * torch.randn_like(parameter))
    words = tokenizer(TEMPLATE)
    model.config.eos_token_id = model.generation_config.eos_token_id = words.eos_token_id
    file = folder / f"tiny-{family}-{kind}.gguf"
    writer = gguf.GGUFWriter(file, family)
    write_header(writer, family, config)
    names = gguf.get_tensor_name_map(
        next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == family), config.num_hidden_layers
    )
    state = model.state_dict()
    for name, value in state.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        rows = value.numpy()
        held = KINDS[kind] if rows.ndim == 2 else gguf.GGMLQuantizationType.F32
        kept = gguf.quantize(rows, held)
        value.copy_(torch.from_numpy(gguf.dequantize(kept, held).copy()))
        if family == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            kept = gguf.quantize(interleaved(rows, heads), held)
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), kept, raw_dtype=held)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    whole = folder / f"{family}-{kind}"
    model.save_pretrained(whole)
    words.save_pretrained(whole)
    return file, whole


def write_header(writer: "gguf.GGUFWriter", family: str, config: Any) -> None:
    """Sizes and the tokenizer."""
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if family == "llama":
        writer.add_rope_dimension_count(16)
    if family == "qwen3":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    words = tokenizer(TEMPLATE)
    known = {number: word for word, number in words.get_vocab().items()}
    tokens = [known.get(number, f"[PAD{number}]") for number in range(config.vocab_size)]
    control, normal, unused = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL, gguf.TokenType.UNUSED
    kinds = [control if token in ROLES else unused if token.startswith("[PAD") else normal for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2" if family != "llama" else "llama-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_eos_token_id(words.eos_token_id)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def interleaved(rows: "np.ndarray[Any, Any]", heads: int) -> "np.ndarray[Any, Any]":
    """Rows of queries or keys as llama.cpp rotates them: halves of a head next to each other."""
    parts = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(parts.swapaxes(1, 2).reshape(rows.shape))
