"""The text the model reads: the chosen parts of the open documents, joined, with its tokens."""

from array import array
from dataclasses import dataclass, field

from app.context.context_documents import Choice, Library
from app.context.evidence import Passage, evidence_in
from app.documents.document import Document

MOST_WEIGHED = 500  # answers whose evidence is kept


@dataclass(frozen=True, slots=True, eq=False)
class Book:
    """The text the model reads, from a library that fits, and its size in tokens."""

    document: Document  # the first one
    num_tokens: int  # of the text
    num_opening: int  # everything before the first question, including the chat template
    library: Library = field(default_factory=Library)
    starts: "array[int]" = field(default_factory=lambda: array("I"))  # first character of each token; empty: not known
    chunk_size: int = 1  # of the retrieval cache, tokens
    chunk_pages: "array[int]" = field(default_factory=lambda: array("I"))  # for each chunk the index in library.pages
    note: str = ""  # a warning that the model may not suit this text
    weighed: dict[str, tuple[Passage, ...]] = field(default_factory=dict)  # evidence by answer

    @property
    def title(self) -> str:
        """The title, or the first title and the number of further ones."""
        more = len(self.library.books) - 1
        return f"{self.document.title} and {more} more" if more > 0 else self.document.title

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its files."""
        return tuple(book.document.name for book in self.library.books) or (self.document.name,)

    @property
    def first_token(self) -> int:
        """The index in a prompt of the text's first token."""
        return self.num_opening - self.num_tokens

    def evidence(self, answer: str) -> tuple[Passage, ...]:
        """What an answer has from the book; each answer is looked up once."""
        if (known := self.weighed.get(answer)) is None:
            if len(self.weighed) >= MOST_WEIGHED:
                self.weighed.clear()
            library = self.library
            ends = [page.end for page in library.pages]
            known = self.weighed[answer] = evidence_in(answer, library.words, ends)
        return known

    @property
    def parts(self) -> tuple[tuple[bytes, Choice], ...]:
        """The identity of the text: two books with equal parts are the same."""
        return tuple((book.digest, book.choice) for book in self.library.books)
