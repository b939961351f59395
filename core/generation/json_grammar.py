"""JSON schemas as grammars over a model's tokens, through llguidance (requirements-grammar.txt), which is optional."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from core.decoding.grammar import Grammar, Matcher, Thought
from core.errors import BadGrammar
from core.generation.thinking import Tags

if TYPE_CHECKING:
    from core.generation.text import ChatText

# White space that may stand between the parts of a document. Without a bound a model may write it for ever.
WHITE_SPACE = r"[ ]{1,2}|\n[ ]{0,20}"
LONGEST_MARK = 16  # tokens at a prompt's end among which a closed thought is looked for


class JsonMatcher:
    """See `Matcher`. Args: vocab: size of a distribution."""

    def __init__(self, matcher: Any, vocab: int) -> None:
        self._matcher, self._vocab = matcher, vocab

    def accept(self, token_id: int) -> bool:
        """See `Matcher`."""
        return bool(self._matcher.try_consume_tokens([token_id]) == 1)

    def rollback(self, num_tokens: int) -> None:
        """See `Matcher`."""
        self._matcher.rollback(num_tokens)

    def allowed(self) -> Tensor:
        """See `Matcher`."""
        packed = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
        bits = (packed[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
        mask = bits.flatten()[: self._vocab].bool()
        if self._matcher.is_error() or not mask.any():
            reason = self._matcher.get_error().strip().partition("\n")[0] or "no token may come next"
            raise BadGrammar(f"The JSON schema cannot be followed further ({reason}).", hint="Use a simpler one.")
        return mask


class JsonGrammars:
    """Grammars over the tokens of one model.

    Args:
        eos_ids: the tokens that end a text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, eos_ids: frozenset[int]) -> None:
        self._tokenizer, self._eos_ids = tokenizer, eos_ids
        self._tokens: dict[int, Any] = {}  # by size of the vocabulary; each takes up to a second to make

    def matcher(self, schema: str, vocab: int) -> Matcher:
        """Follows documents of a JSON schema.

        Raises:
            BadGrammar: llguidance is missing, or does not know the tokenizer or the schema, which is then never
                followed in part.
        """
        try:
            from llguidance import LLMatcher
        except ImportError as error:
            raise BadGrammar(
                "Answers that follow a JSON schema need the package llguidance.",
                hint="Install requirements-grammar.txt where the model runs.",
            ) from error
        tokens = self._tokens_of(vocab)
        try:
            grammar = LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": WHITE_SPACE})
            failed, warnings = LLMatcher.validate_grammar_with_warnings(grammar, tokens)
        except ValueError as error:
            failed, warnings = True, [str(error)]
        if failed:
            why = " ".join(warnings[0].split())[:200].rstrip(".")
            raise BadGrammar(f"The JSON schema cannot be followed: {why}.", hint="Leave that out of it.")
        return JsonMatcher(LLMatcher(tokens, grammar, log_level=0), vocab)

    def _tokens_of(self, vocab: int) -> Any:
        from llguidance.hf import from_tokenizer

        if vocab not in self._tokens:
            ends = sorted(token for token in self._eos_ids if token < vocab)
            try:
                tokens = from_tokenizer(cast(Any, self._tokenizer), n_vocab=vocab, eos_token=ends)
            except (ValueError, TypeError, RuntimeError) as error:
                raise BadGrammar(
                    f"llguidance does not know this model's tokenizer ({' '.join(str(error).split())[:120]}).",
                    hint="Ask without a JSON schema.",
                ) from error
            self._tokens[vocab] = tokens
        return self._tokens[vocab]


def grammar_of(
    text: "ChatText", schema: str, prompt_ids: Sequence[int], vocab: int, written: Sequence[int] = ()
) -> Grammar:
    """The grammar of an answer to a prompt.

    Args:
        vocab: size of a distribution.
        written: tokens of the answer that exist already.
    Raises:
        BadGrammar: it cannot be followed, or not behind what is written.
    """
    marks, thought = text.marks, None
    if marks is not None and not isinstance(marks, Tags):
        raise BadGrammar(
            "This model writes its answers in channels, which no JSON schema describes.",
            hint="Ask without a JSON schema.",
        )
    reader = text.thoughts(prompt_ids)
    if marks is not None and reader is not None:
        closed = not reader.thinking and marks.closing in prompt_ids[-LONGEST_MARK:]
        thought = None if closed else Thought(marks.opening, marks.closing, reader.thinking)
    grammar = Grammar(text.matcher(schema, vocab), len(prompt_ids), text.eos_ids, thought=thought)
    if written and not grammar.follows(written):
        raise BadGrammar(
            "The beginning of the answer does not follow the JSON schema.", hint="Ask without it, or from the start."
        )
    return grammar
