"""OpenDocument texts: what a reader sees of them, and what is refused."""

from pathlib import Path

import pytest

from app.documents import Document, read_document
from app.documents.errors import DamagedDocument, PasswordProtected, UnsupportedFormat
from tests.hostile.corpus import odt, odt_files

pytestmark = pytest.mark.usefixtures("in_this_process")

WORDS = "<text:p>The pilot counted the boats that came in.</text:p>"


def opened(folder: Path, body: str, **options: object) -> Document:
    (folder / "a.odt").write_bytes(odt(body, **options))  # type: ignore[arg-type]
    return read_document(folder / "a.odt")


def items(*texts: str) -> str:
    return "".join(f"<text:list-item><text:p>{text}</text:p></text:list-item>" for text in texts)


NUMBERED = (
    '<text:list-style style:name="L"><text:list-level-style-number text:level="1" style:num-format="1" '
    'style:num-suffix="."/><text:list-level-style-number text:level="2" style:num-format="a" style:num-suffix=")" '
    'text:display-levels="2"/></text:list-style>'
)


def test_headings_are_numbered_chapters(tmp_path: Path) -> None:
    outline = (
        '<text:outline-style style:name="Outline"><text:outline-level-style text:level="1" style:num-format="I" '
        'style:num-prefix="Part "/></text:outline-style>'
    )
    body = "".join(f'<text:h text:outline-level="1">{title}</text:h>{WORDS}' for title in ("Ebb", "Flood"))
    document = opened(tmp_path, body, styles=outline)
    assert [chapter.title for chapter in document.chapters] == ["Part I Ebb", "Part II Flood"]
    assert document.format == "odt" and document.title == "Part I Ebb" and not document.has_own_pages


def test_lists_keep_their_numbers_and_levels(tmp_path: Path) -> None:
    inner = f"<text:list-item><text:p>two</text:p><text:list>{items('in')}</text:list></text:list-item>"
    body = f'<text:list text:style-name="L">{items("one")}{inner}</text:list>{WORDS}'
    body += f'<text:list text:style-name="L" text:continue-numbering="true">{items("three")}</text:list>'
    text = opened(tmp_path, body + f"<text:list>{items('free')}</text:list>", styles=NUMBERED).text
    assert text.startswith("1. one\n2. two\n  2.a) in\n\nThe pilot") and "\n\n3. three\n• free" in text


def test_tables_come_row_by_row(tmp_path: Path) -> None:
    cell = "<table:table-cell><text:p>{}</text:p></table:table-cell>"
    rows = ("".join(cell.format(text) for text in row) for row in (("Name", "Tons"), ("", "12"), ("Tern", "7")))
    table = "".join(f"<table:table-row>{row}</table:table-row>" for row in rows)
    assert opened(tmp_path, f"{WORDS}<table:table>{table}</table:table>{WORDS}").text.split("\n\n")[1] == (
        "Name | Tons\n| 12\nTern | 7"
    )


def test_notes_follow_the_text(tmp_path: Path) -> None:
    note = (
        "<text:note><text:note-citation>*</text:note-citation>"
        "<text:note-body><text:p>{}</text:p></text:note-body></text:note>"
    )
    document = opened(tmp_path, f"<text:p>Boats{note.format('Small.')} and ships{note.format('Big.')}.</text:p>")
    assert document.text == "Boats[1] and ships[2].\n\nNotes\n\n[1] Small.\n\n[2] Big."


def test_what_no_reader_sees_is_left_out(tmp_path: Path) -> None:
    hidden = '<style:style style:name="H"><style:text-properties text:display="none"/></style:style>'
    body = (
        "<text:tracked-changes><text:changed-region><text:deletion><text:p>deleted</text:p></text:deletion>"
        "</text:changed-region></text:tracked-changes>"
        '<text:p>Seen<text:span text:style-name="H"> hidden</text:span><office:annotation><text:p>said</text:p>'
        "</office:annotation> by<text:s/>all<text:tab/>of<text:line-break/>us"
        "<text:title>: a field</text:title>.</text:p>"
        '<text:section text:display="none"><text:p>behind</text:p></text:section>'
    )
    assert opened(tmp_path, body, styles=hidden).text == "Seen by all of\nus: a field."


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [
        ("with a password", PasswordProtected, "protected by a password"),
        ("no content", DamagedDocument, "not an OpenDocument text"),
        ("a laugh", UnsupportedFormat, "declares XML entities"),
        ("another root", DamagedDocument, "not an OpenDocument text"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, what: str, error: type[Exception], words: str) -> None:
    (tmp_path / "a.odt").write_bytes(odt_files()[what]())
    with pytest.raises(error, match=words):
        read_document(tmp_path / "a.odt")


@pytest.mark.parametrize(("kind", "hint"), [("spreadsheet", "as CSV"), ("presentation", "as .pptx")])
def test_its_sisters_are_refused_with_an_action(tmp_path: Path, kind: str, hint: str) -> None:
    (tmp_path / "a.ods").write_bytes(odt(WORDS).replace(b"opendocument.text", b"opendocument." + kind.encode()))
    with pytest.raises(UnsupportedFormat, match=f"an OpenDocument {kind}") as caught:
        read_document(tmp_path / "a.ods")
    assert hint in caught.value.hint
