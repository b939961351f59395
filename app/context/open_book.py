"""What the model reads: the chosen parts of the open documents as one text with its tokens."""

from array import array
from dataclasses import dataclass, field

from app.context.context_documents import Choice, Library
from app.context.quotes import Quote, quotes_in
from app.documents.document import Document


@dataclass(frozen=True, slots=True, eq=False)
class Book:
    """What the model reads: a library that fits, or what is chosen of it, and what it costs in tokens."""

    document: Document  # the first one
    num_tokens: int  # of the text
    num_opening: int  # of everything before the first question, the chat template included
    context: int
    library: Library = field(default_factory=Library)
    starts: "array[int]" = field(default_factory=lambda: array("I"))  # in its text, of each token; empty: not known
    chunk_size: int = 1  # of the retrieval cache, tokens
    chunk_pages: "array[int]" = field(default_factory=lambda: array("I"))  # for each chunk the index in shelf.pages
    note: str = ""  # what the model may not be able to do with this text
    quoted: dict[str, tuple[Quote, ...]] = field(default_factory=dict)  # quotations by the answer they stand in

    @property
    def title(self) -> str:
        """One title, or the first and how many more."""
        more = len(self.library.books) - 1
        return f"{self.document.title} and {more} more" if more > 0 else self.document.title

    @property
    def names(self) -> tuple[str, ...]:
        """The files it comes from."""
        return tuple(book.document.name for book in self.library.books) or (self.document.name,)

    @property
    def first_token(self) -> int:
        """Where its text begins in a prompt."""
        return self.num_opening - self.num_tokens

    def quotes(self, answer: str) -> tuple[Quote, ...]:
        """The quotations of an answer, looked up in the text once."""
        if answer not in self.quoted:
            self.quoted[answer] = quotes_in(answer, self.library.text)
        return self.quoted[answer]

    @property
    def parts(self) -> tuple[tuple[bytes, Choice], ...]:
        """What makes two books the same."""
        return tuple((book.digest, book.choice) for book in self.library.books)
