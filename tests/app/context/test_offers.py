"""What could be chosen of the books of a library for it to fit."""

from hypothesis import given
from hypothesis import strategies as st

from app.cli.reading import whole_text
from app.context.context_documents import Library
from app.context.offers import fits, offers
from app.context.token_costs import Meter
from app.documents.document import Document
from tests.app.context.test_context_documents import a_document, documents
from tests.app.context.test_token_costs import count, ten_pages


def test_what_fits_is_offered_first_and_every_chapter_is_there() -> None:
    given_offers = offers(Library().add(ten_pages()), 0, Meter(count), budget=46)
    assert [(offer.label, offer.num_tokens, offer.fits) for offer in given_offers] == [
        ("everything", 100, False),
        ("pages 1–4", 40, True),
        ("chapters 1–2", 35, True),
        ("chapter 3: C3", 45, True),
        ("chapter 4: C4", 15, True),
        ("chapter 1: C1", 5, True),
        ("chapter 2: C2", 30, True),
    ]


def test_a_document_without_chapters_is_offered_in_runs_of_pages() -> None:
    document = a_document("a", ["word " * n for n in (3, 3, 9, 3, 3, 3)])
    names = [offer.label for offer in offers(Library().add(document), 0, Meter(count), budget=7)]
    assert names == ["everything", "pages 1–2", "pages 4–5", "page 6"]


def test_when_everything_fits_chapters_are_still_there_to_choose() -> None:
    names = [offer.label for offer in offers(Library().add(ten_pages()), 0, Meter(count), budget=100)]
    assert names == ["everything", *(f"chapter {n}: C{n}" for n in (1, 2, 3, 4))]


def test_other_books_take_their_share_of_the_budget() -> None:
    library = Library().add(ten_pages()).add(a_document("b", ["other " * 20]))
    for offer in fits(library, Meter(count), budget=70):
        assert offer.total_tokens == Meter(count).library(library.choose(offer.book, offer.choice))
        assert offer.fits == (offer.total_tokens <= 70)
    labels = [offer.label for offer in fits(library, Meter(count), budget=70)]
    assert "pages 1–4" in labels
    assert library.text == whole_text([book.document for book in library.books])


@given(documents(), st.integers(0, 12))
def test_no_offer_claims_to_fit_that_does_not(document: Document, budget: int) -> None:
    library, meter = Library().add(document), Meter(len)
    for offer in offers(library, 0, meter, budget):
        assert offer.fits == (len(library.choose(0, offer.choice).text) <= budget)
