"""FB2 books: sections, verses, notes, authors, encodings."""

import zipfile
from pathlib import Path

import pytest

from app.documents import Document, read_document, read_documents
from app.documents.errors import DamagedDocument, UnsupportedFormat
from tests.hostile.corpus import fb2, fb2_files

pytestmark = pytest.mark.usefixtures("in_this_process")

NOTES = (
    '<body name="notes"><title><p>Notes</p></title><section id="n1"><title><p>1</p></title><p>Small.</p></section>'
    "{}</body>"
)


def opened(folder: Path, body: str, **options: str) -> Document:
    (folder / "a.fb2").write_text(fb2(body, **options), encoding="utf-8")
    return read_document(folder / "a.fb2")


def chapter(title: str, text: str) -> str:
    return f"<section><title><p>{title}</p></title><p>{text}</p></section>"


def test_sections_are_chapters_and_titles_of_two_lines_are_one(tmp_path: Path) -> None:
    body = "<title><p>Reed</p><p>The Log</p></title>" + chapter("One</p><p>Ebb", "A gull.") + chapter("Two", "Boats.")
    document = opened(tmp_path, body)
    assert document.text == "Reed\nThe Log\n\nOne\nEbb\n\nA gull.\n\nTwo\n\nBoats."
    assert [chapter.title for chapter in document.chapters] == ["One Ebb", "Two"] and document.format == "fb2"


def test_verses_and_tables_keep_their_lines(tmp_path: Path) -> None:
    poem = (
        "<poem><stanza><v>One</v><v>two</v></stanza><stanza><v>three</v></stanza><text-author>Reed</text-author></poem>"
    )
    table = "<table><tr><th>Name</th><th>Tons</th></tr><tr><td>Gull</td><td>12</td></tr></table>"
    text = opened(
        tmp_path, f"<section><p>a</p>{poem}<empty-line/>{table}<subtitle>* * *</subtitle><p>b</p></section>"
    ).text
    assert text == "a\n\nOne\ntwo\n\nthree\n\nReed\n\nName | Tons\nGull | 12\n\n* * *\n\nb"


def test_notes_follow_the_text_and_those_without_a_call_too(tmp_path: Path) -> None:
    call = '<p>Boats<a type="note" l:href="#n1">*</a> came.</p>'
    document = opened(tmp_path, call, more=NOTES.format('<section id="n2"><p>Lonely.</p></section>'))
    assert document.text == "Boats[1] came.\n\nNotes\n\nNotes\n\n[1] Small.\n\nLonely." and not document.warnings
    assert "text is missing" in opened(tmp_path, call.replace("n1", "n9")).warnings[0]


@pytest.mark.parametrize("encoding", ["utf-8", "windows-1251", "utf-16"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    start = f'<?xml version="1.0" encoding="{encoding}"?>'
    (tmp_path / "a.fb2").write_bytes(fb2("<p>Мир лодок</p>", start=start).encode(encoding))
    assert read_document(tmp_path / "a.fb2").text == "Мир лодок"


def test_a_packed_book_is_opened_as_one(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.fb2.zip", "w") as archive:
        archive.writestr("log.fb2", fb2(chapter("One", "A gull.")))
    (document,) = read_documents(tmp_path / "a.fb2.zip")
    assert (document.name, document.format, document.warnings) == ("log.fb2", "fb2", ())


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("a laugh", UnsupportedFormat),
        ("nothing but a head", DamagedDocument),
        ("a prefix that nobody declared", DamagedDocument),
        ("sections that never end", DamagedDocument),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, what: str, error: type[Exception]) -> None:
    (tmp_path / "a.fb2").write_bytes(fb2_files()[what]())
    with pytest.raises(error):
        read_document(tmp_path / "a.fb2")
