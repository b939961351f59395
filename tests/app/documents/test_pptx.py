"""Presentations: slides as pages, their titles, lists, tables, notes and diagrams."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from app.documents import Document, read_document
from app.documents.errors import DamagedDocument, EmptyDocument, ScannedDocument, UnsupportedFormat
from tests.hostile.corpus import A, P, archive, pptx, shape, slide

pytestmark = pytest.mark.usefixtures("in_this_process")

LINK = '<Relationships><Relationship Id="n" Type="x/{}" Target="../{}"/></Relationships>'
WORDS = "The pilot counted the boats that came in."


def opened(folder: Path, slides: Sequence[str], files: Mapping[str, str | bytes] = {}, **options: str) -> Document:
    (folder / "a.pptx").write_bytes(pptx(slides, files, **options))
    return read_document(folder / "a.pptx")


def paragraph(text: str, properties: str = "") -> str:
    return f"<a:p>{properties}<a:r><a:t>{text}</a:t></a:r></a:p>"


def test_slides_are_pages_with_labels_and_titles_are_chapters(tmp_path: Path) -> None:
    document = opened(tmp_path, [slide("Ebb", WORDS), slide("Flood", "A gull."), slide("", "Only text.")])
    assert document.format == "pptx" and document.has_own_pages and document.title == "Ebb"
    assert [page.label for page in document.pages] == ["1", "2", "3"]
    assert document.page_text(document.pages[1]) == "Flood\n\n• A gull.\n\n"
    assert [(chapter.title, chapter.first_page) for chapter in document.chapters] == [("Ebb", 1), ("Flood", 2)]


def test_lists_have_levels_and_numbers(tmp_path: Path) -> None:
    number = '<a:pPr{}><a:buAutoNum type="{}"{}/></a:pPr>'
    inside = "</a:t></a:r></a:p>".join(["one"]) + "</a:t></a:r></a:p>"
    inside += paragraph("in", '<a:pPr lvl="1"/>') + paragraph("none", "<a:pPr><a:buNone/></a:pPr>")
    inside += paragraph("c", number.format("", "alphaLcParenR", ' startAt="3"'))
    inside += paragraph("d", number.format("", "alphaLcParenR", ' startAt="3"'))
    inside += paragraph("deep", number.format(' lvl="1"', "romanUcPeriod", "")) + "<a:p><a:r><a:t>last"
    text = opened(tmp_path, [slide("T", inside)]).text
    assert text == "T\n\n• one\n  • in\nnone\nc) c\nd) d\n  I. deep\n• last"


def test_tables_come_row_by_row(tmp_path: Path) -> None:
    cell = "<a:tc><a:txBody>{}</a:txBody></a:tc>"
    rows = ("".join(cell.format(paragraph(text)) for text in row) for row in (("Name", "Tons"), ("Gull", "12")))
    table = "".join(f"<a:tr>{row}</a:tr>" for row in rows)
    frame = f"<p:graphicFrame><a:graphic><a:tbl>{table}</a:tbl></a:graphic></p:graphicFrame>"
    assert opened(tmp_path, [slide("T", WORDS, frame)]).text.endswith("\n\nName | Tons\nGull | 12")


def test_notes_of_the_speaker_and_diagrams_follow_their_slide(tmp_path: Path) -> None:
    notes = f'<p:notes xmlns:a="{A}" xmlns:p="{P}">{shape("Say it slowly.")}{shape("4", "sldNum")}</p:notes>'
    data = f'<d:dataModel xmlns:a="{A}" xmlns:d="d"><d:pt><d:t>{paragraph("First step")}</d:t></d:pt></d:dataModel>'
    links = LINK.format("notesSlide", "n.xml").replace(
        "</R", '<Relationship Id="d" Type="diagramData" Target="../d.xml"/></R'
    )
    files = {"ppt/slides/_rels/slide1.xml.rels": links, "ppt/n.xml": notes, "ppt/d.xml": data}
    assert opened(tmp_path, [slide("T", WORDS)], files).text == (
        f"T\n\n• {WORDS}\n\nFirst step\n\nNotes: Say it slowly."
    )


def test_slides_of_images_and_damaged_ones_are_named(tmp_path: Path) -> None:
    picture = slide("", "", "<p:pic><a:blip/></p:pic>")
    document = opened(tmp_path, [slide("T", WORDS * 3), picture, "<p:sld", slide("U", WORDS * 3)])
    assert document.warnings == (
        "Only images, which are not read: slides 2.",
        "Missing or damaged, so that text is lost: slides 3.",
    )
    with pytest.raises(ScannedDocument, match="2 pages are images"):
        opened(tmp_path, [picture, picture])
    with pytest.raises(EmptyDocument, match="holds no text"):
        opened(tmp_path, [slide("", "")])
    with pytest.raises(DamagedDocument, match="none of its slides"):
        opened(tmp_path, ["<p:sld"])
    with pytest.raises(DamagedDocument, match="not a PowerPoint presentation"):
        opened(tmp_path, [WORDS], {"ppt/presentation.xml": "<a/>"})


def test_a_workbook_is_refused_with_an_action(tmp_path: Path) -> None:
    (tmp_path / "a.xlsx").write_bytes(archive({"[Content_Types].xml": "<Types/>", "xl/workbook.xml": "<a/>"}))
    with pytest.raises(UnsupportedFormat, match="an Excel workbook") as caught:
        read_document(tmp_path / "a.xlsx")
    assert "as CSV" in caught.value.hint
