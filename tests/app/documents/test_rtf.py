"""RTF files as Word, LibreOffice and pandoc write them, and broken ones."""

from pathlib import Path

import pytest

from app.documents import Document, read_document
from app.documents.errors import DamagedDocument
from tests.hostile.corpus import rtf

pytestmark = pytest.mark.usefixtures("in_this_process")


def opened(folder: Path, body: str, head: str = "") -> Document:
    (folder / "a.rtf").write_bytes(rtf(body, head))
    return read_document(folder / "a.rtf")


def test_paragraphs_and_breaks(tmp_path: Path) -> None:
    body = r"\pard One \b bold\b0  word\line below.\par\pard Two\tab tabs\emdash\ldblquote x\rdblquote .\par}junk"
    assert opened(tmp_path, body).text == "One bold word\nbelow.\n\nTwo tabs—“x”."


def test_headings_are_chapters_by_level_by_style_and_by_its_base(tmp_path: Path) -> None:
    styles = r"{\stylesheet{\s1 heading 1;}{\s5\sbasedon1 Own;}{\s6\sbasedon6 Loop;}{\*\cs9 heading 1;}}"
    body = r"\pard\s1 A\par\pard x\par{\pard\outlinelevel0 B\par}\pard\s5 C\par\pard\s6 y\par\pard\outlinelevel9 z\par"
    assert [chapter.title for chapter in opened(tmp_path, body, styles).chapters] == ["A", "B · C"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (r"\'e9t\'e9", "été"),
        (r"\f0 \'cc\'e8\'f0", "Мир"),  # the font's character set
        (r"\f1 \'93\'8c\'8b\'9e", "東京"),  # two bytes a letter
        (r"{\f0 \'e8}\'e9", "иé"),
        (r"\u26481 ?\u20140 ?", "東京"),
        (r"\uc2\u26481 \'93\'8c\uc0\u20140 x", "東京x"),
        (r"\u55357 ?\u56832 ?", "\N{GRINNING FACE}"),
        (r"a\~b\_c\-d\{e\}", "a b-cd{e}"),
    ],
)
def test_letters_of_all_encodings(tmp_path: Path, body: str, text: str) -> None:
    assert opened(tmp_path, rf"\pard {body}\par").text == text


def test_tables_come_row_by_row(tmp_path: Path) -> None:
    row = r"\trowd\cellx1\cellx2\pard\intbl {}\cell {}\cell\row"
    body = (
        r"\pard Before.\par"
        + row.replace("{}", "a", 1).replace("{}", r"b\par c")
        + row.replace("{}", "").replace("{}", "")
    )
    text = opened(tmp_path, body + row.replace("{}", "", 1).replace("{}", "d") + r"\pard After.\par").text
    assert text == "Before.\n\na | b\n\nc\n| d\n\nAfter."


@pytest.mark.parametrize("start", [r"\*\footnote\chftn ", r"\footnote \ftnalt\chftn "])
def test_notes_follow_the_text(tmp_path: Path, start: str) -> None:
    note = r"{\super\chftn}{" + start + r"\pard Small.\par}"
    assert opened(tmp_path, rf"\pard Boats{note} came.\par").text == "Boats[1] came.\n\nNotes\n\n[1] Small."


def test_what_no_reader_sees_is_left_out(tmp_path: Path) -> None:
    body = (
        r"{\header On each page}{\footer 1}\pard Seen by all of us here{\v not}{\deleted gone}{\*\annotation a}{\*\x y}"
        r'{\field{\*\fldinst HYPERLINK "http://x"}{\fldrslt  by all}}{\pict\pngblip ffd8}{\*\bkmkstart a}.\par'
    )
    assert opened(tmp_path, body).text == "Seen by all of us here by all."


@pytest.mark.parametrize("cut", [3, 40, 120])
def test_a_file_that_is_cut_off_says_so(tmp_path: Path, cut: int) -> None:
    (tmp_path / "a.rtf").write_bytes(rtf(r"\pard " + "Words. " * 40)[:-cut])
    with pytest.raises(DamagedDocument, match="is cut off"):
        read_document(tmp_path / "a.rtf")
