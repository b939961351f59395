"""Tiny checkpoints that think: every token has one successor, so thought and answer are known."""

from itertools import pairwise
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = [("t", "h"), ("th", "e")]
ROLES = ("<|user|>", "<|assistant|>", "<|end|>")
THOUGHT = ("\n", "Hm", ": \u201cthe page says Reed lit it\u201d", ".")
ANSWER = ("Captain", " Reed", " keeps the light", "!")
SIDE = 304  # of every matrix; at least the number of tokens
SWITCH = "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
# The history without thoughts, and `enable_thinking`, as Qwen3's template has them.
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}<|end|>"
    "{% else %}<|assistant|>{{ m.content.split('</think>')[-1] }}<|end|>{% endif %}{% endfor %}"
    f"{{% if add_generation_prompt %}}<|assistant|>{SWITCH}{{% endif %}}"
)
ALWAYS, PLAIN = TEMPLATE.replace(SWITCH, "<think>"), TEMPLATE.replace(SWITCH, "")


def tokenizer(template: str = TEMPLATE) -> PreTrainedTokenizerFast:
    """Bytes, whole words that only a model writes, and marks; `<think>` is text for decoders, as in Qwen3."""
    words = [_visible(word) for word in (*THOUGHT, *ANSWER, "\n\n")]
    names = dict.fromkeys([*BYTES, *words, *map("".join, MERGES)])
    backend = Tokenizer(BPE(vocab={name: number for number, name in enumerate(names)}, merges=MERGES))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, special=True) for name in ROLES])
    backend.add_tokens([AddedToken(name, special=False) for name in ("<think>", "</think>")])
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")
    made.chat_template = template
    return made


def _visible(word: str) -> str:
    """A word as byte-level vocabularies write it."""
    return "".join(part for part, _ in pre_tokenizers.ByteLevel(False, use_regex=False).pre_tokenize_str(word))


def save_thinker(folder: Path, template: str = TEMPLATE, *, ends: bool = True) -> Path:
    """Write the checkpoint. Without `ends` the thought goes round in circles."""
    words = tokenizer(template)
    known = words.get_vocab()
    chain = [known[name] for name in ("<|assistant|>", "<think>")]
    chain += [known[_visible(word)] for word in THOUGHT]
    if ends:
        chain += [known["</think>"], *(known[_visible(word)] for word in ("\n\n", *ANSWER)), known["<|end|>"]]
    else:
        chain.append(known[_visible("Hm")])
    config = LlamaConfig(
        vocab_size=SIDE,
        hidden_size=SIDE,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=8192,
        bos_token_id=None,
        eos_token_id=known["<|end|>"],
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        layer = model.model.layers[0]
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(SIDE))
        model.lm_head.weight.zero_()
        for one, following in pairwise(chain):
            model.lm_head.weight[following, one] = 4.0
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder
