"""A conversation about a book: questions as text, answers as the token ids that were written.

Immutable: an edit, a regenerate or a branch is another conversation with a common prefix.
"""

from dataclasses import dataclass, replace

from core.errors import EmptyQuestion
from core.generation.text import PromptText, Turn


@dataclass(frozen=True, slots=True)
class Conversation:
    """Book and turns. The last turn is unanswered while the engine writes its answer."""

    book_ids: tuple[int, ...] = ()
    turns: tuple[Turn, ...] = ()

    def ask(self, question: str) -> "Conversation":
        """A further question.

        Raises:
            EmptyQuestion: nothing but white space.
        """
        if not question.strip():
            raise EmptyQuestion
        return replace(self, turns=(*self.turns, Turn(question.strip())))

    def answered(self, token_ids: tuple[int, ...], eos_ids: frozenset[int]) -> "Conversation":
        """With the answer to the last question; the template adds the end-of-text token itself."""
        if token_ids and token_ids[-1] in eos_ids:
            token_ids = token_ids[:-1]
        return replace(self, turns=(*self.turns[:-1], replace(self.turns[-1], answer_ids=token_ids)))

    def until(self, turn: int) -> "Conversation":
        """The first `turn` turns, behind which an edited or regenerated question continues."""
        return replace(self, turns=self.turns[:turn])

    def prompt_ids(self, text: PromptText, thinking: str | None = None) -> list[int]:
        """All tokens up to where the answer to the last question begins. `thinking`: see `ChatText.pieces`."""
        return text.prompt(self.book_ids, self.turns, thinking)

    def opening_ids(self, text: PromptText, thinking: str | None = None) -> list[int]:
        """All tokens before the first question."""
        return text.opening(self.book_ids, thinking)
