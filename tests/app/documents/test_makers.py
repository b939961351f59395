from collections import Counter

from assets.tools.documents.makers import measure, num_lost
from tests.app.documents.conftest import MakePdf

LINES = [f"The old pilot counted the boats on evening number {number} of his life." for number in range(9)]


def test_a_file_that_is_read_whole_has_lost_nothing(make_pdf: MakePdf) -> None:
    row = measure(make_pdf(*[["A header of the book", *LINES, str(number)] for number in (1, 2, 3)]))
    assert (row.num_pages, row.lost_words, row.long_words, row.plain_long_words) == (3, 0.0, 0.0, 0.0)
    assert row.pages_per_second > 0


def test_lost_words_are_counted_and_hyphens_are_no_loss() -> None:
    plain = ["the", "old", "well", "known", "light", "house", "by", "the", "sea"]
    assert num_lost(plain, plain, Counter()) == 0
    assert num_lost(plain, plain[:-2], Counter()) == 2, "'the' stands there twice"
    assert num_lost(plain, plain[:-2], Counter(["sea"])) == 1
    assert num_lost(plain, ["the", "old", "well", "known", "lighthouse", "by", "the", "sea"], Counter()) == 0
    assert num_lost(["wellknown"], ["well", "known"], Counter()) == 0
