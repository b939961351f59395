"""The tokenizer of the bundled pair and the token layout of a conversation about a book.

Owns the vocabulary and the segmentation that the app uses: template, book and question are tokenised apart and their
ids joined. Byte-level, so any text comes back exactly; words of the generated world become one token, and so do the
frequent ones of English.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from assets.tools.books.generated import write_book
from assets.training.english import passages

VOCAB_SIZE = 3072
PAD, BOS, USER, ASSISTANT, END = "<|pad|>", "<|bos|>", "<|user|>", "<|assistant|>", "<|end|>"
SPECIALS = (PAD, BOS, USER, ASSISTANT, END)
# Newline runs, words with their leading space, numbers in pairs of digits, punctuation, other white space.
SPLIT = r"\n+| ?\p{L}+| ?\p{N}{1,2}| ?[^\s\p{L}\p{N}]+|[^\S\n]+(?!\S)|\s"
CHAT_TEMPLATE = (
    "{{ '<|bos|>' }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '<|user|>\n' + message['content'] + '<|end|>\n' }}{% else %}"
    "{{ '<|assistant|>\n' + message['content'] + '<|end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
TOKENIZER_SEED = 7_000_000


def _sample_texts(num_books: int) -> Iterator[str]:
    yield from passages()
    for index in range(num_books):
        book = write_book(TOKENIZER_SEED + index, 1500)
        yield book.text
        for question in book.questions:
            if question.kind != "recite":
                yield question.question
                yield question.answer
        yield "Recite chapter 1 from its beginning."
        yield 'Quote the sentence that contains "it".'
        yield "Continue the story."


def train_tokenizer(num_books: int = 200) -> PreTrainedTokenizerFast:
    """Train the shared vocabulary on books that no model is trained or measured on, and on some English."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample_texts(num_books), trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[USER, ASSISTANT],
        clean_up_tokenization_spaces=False,
        model_max_length=131072,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


@dataclass(frozen=True, slots=True)
class Layout:
    """Joins separately tokenised segments exactly as the app does."""

    tokenizer: Tokenizer

    @staticmethod
    def load(folder: Path) -> Layout:
        """Read the tokenizer of a model folder."""
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.encode_special_tokens = True
        return Layout(tokenizer)

    def ids(self, text: str) -> list[int]:
        """Ids of plain text, special tokens not parsed."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def mark(self, special: str) -> int:
        """Id of one special token."""
        token_id = self.tokenizer.token_to_id(special)
        assert token_id is not None, f"{special} is not in the vocabulary"
        return int(token_id)

    def opening(self) -> list[int]:
        """What stands before the book."""
        return [self.mark(BOS), self.mark(USER), *self.ids("\n")]

    def turn(self, question: str, first: bool) -> list[int]:
        """A question and everything up to its answer; the first one follows the book in the same message."""
        text = self.ids("\n\n" + question) if first else [*self.between(), *self.ids(question)]
        return [*text, self.mark(END), *self.ids("\n"), self.mark(ASSISTANT), *self.ids("\n")]

    def between(self) -> list[int]:
        """What stands between an answer (its end token included) and the next question."""
        return [*self.ids("\n"), self.mark(USER), *self.ids("\n")]
