"""Word files as they come: good ones, odd ones, broken ones and hostile ones."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from app.documents import read_document
from app.documents.archive import MAX_ENTRIES
from app.documents.errors import (
    DamagedDocument,
    DocumentError,
    DocumentTooLarge,
    PasswordProtected,
    UnsupportedFormat,
)

pytestmark = pytest.mark.usefixtures("in_this_process")

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
BODY = "The pilot counted the boats that came in with the tide."


def relations(targets: Mapping[str, str], base: str = RELATIONS) -> str:
    entries = (
        f'<Relationship Id="r{n}" Type="{base}/{kind}" Target="{t}"/>' for n, (kind, t) in enumerate(targets.items())
    )
    return f'<Relationships xmlns="{PACKAGE}/relationships">{"".join(entries)}</Relationships>'


def part(root: str, content: str, head: str = "") -> str:
    return f'<?xml version="1.0" encoding="UTF-8"?>{head}<w:{root} xmlns:w="{W}">{content}</w:{root}>'


STYLES = part(
    "styles",
    '<w:style w:type="paragraph" w:styleId="berschrift1"><w:name w:val="heading 1"/></w:style>'
    '<w:style w:type="paragraph" w:styleId="Own"><w:name w:val="Own"/><w:basedOn w:val="berschrift1"/></w:style>'
    '<w:style w:type="paragraph" w:styleId="Loop"><w:name w:val="Loop"/><w:basedOn w:val="Loop"/></w:style>'
    '<w:style w:type="paragraph" w:styleId="T"><w:name w:val="Title"/></w:style>'
    '<w:style w:type="paragraph" w:styleId="N"><w:name w:val="heading 2"/><w:pPr>'
    '<w:numPr><w:numId w:val="3"/></w:numPr>'
    '<w:outlineLvl w:val="1"/></w:pPr></w:style>',
)
NUMBERING = part(
    "numbering",
    "".join(
        f'<w:abstractNum w:abstractNumId="{n}"><w:lvl w:ilvl="0"><w:start w:val="{start}"/><w:numFmt w:val="{form}"/>'
        f'<w:lvlText w:val="{pattern}"/></w:lvl><w:lvl w:ilvl="1"><w:numFmt w:val="lowerLetter"/>'
        '<w:lvlText w:val="%1.%2)"/></w:lvl></w:abstractNum>'
        for n, start, form, pattern in (
            (1, 1, "bullet", "\uf0b7"),
            (2, 4, "decimal", "%1."),
            (3, 1, "upperRoman", "Chapter %1"),
        )
    )
    + "".join(f'<w:num w:numId="{n}"><w:abstractNumId w:val="{n}"/></w:num>' for n in (1, 2, 3)),
)


def p(text: str = "", style: str = "", properties: str = "", runs: str = "") -> str:
    named = f'<w:pStyle w:val="{style}"/>' if style else ""
    return f"<w:p><w:pPr>{named}{properties}</w:pPr>{r(text) if text else ''}{runs}</w:p>"


def r(text: str, properties: str = "") -> str:
    return f'<w:r><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def item(text: str, list_id: int, level: int = 0) -> str:
    return p(text, properties=f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{list_id}"/></w:numPr>')


def make_docx(folder: Path, body: str, files: Mapping[str, str | bytes | None] = {}, name: str = "a.docx") -> Path:
    contents: dict[str, str | bytes | None] = {
        "[Content_Types].xml": '<?xml version="1.0"?><Types xmlns="x"/>',
        "_rels/.rels": relations({"officeDocument": "word/document.xml"}),
        "word/document.xml": part("document", f"<w:body>{body}</w:body>"),
        "word/_rels/document.xml.rels": relations(
            {kind: f"{kind}.xml" for kind in ("styles", "numbering", "footnotes", "endnotes")}
        ),
        "word/styles.xml": STYLES,
        "word/numbering.xml": NUMBERING,
    }
    path = folder / name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, content in (contents | dict(files)).items():
            if content is not None:
                archive.writestr(file, content)
    return path


# -------------------- good ones


def test_paragraphs_headings_and_title(tmp_path: Path) -> None:
    body = p("The Harbour", "T") + p("Quay", "berschrift1") + p(BODY) + p("Tide", "Own") + p(runs=r("The ") + r("end."))
    document = read_document(make_docx(tmp_path, body))
    assert document.text == f"The Harbour\n\nQuay\n\n{BODY}\n\nTide\n\nThe end."
    assert (document.format, document.title, document.has_own_pages) == ("docx", "The Harbour", False)
    assert [(c.title, document.text[c.char_start :][:4]) for c in document.chapters] == [
        ("Quay", "Quay"),
        ("Tide", "Tide"),
    ]
    assert document.warnings == ()


def test_lists_count_as_word_counts(tmp_path: Path) -> None:
    body = p("Bring:") + item("rope", 1) + item("salt", 2) + item("fine", 2, 1) + item("coarse", 2, 1) + item("tea", 2)
    body += p("Go.") + item("again", 2)
    assert read_document(make_docx(tmp_path, body)).text == (
        "Bring:\n\n• rope\n4. salt\n  4.a) fine\n  4.b) coarse\n5. tea\n\nGo.\n\n6. again"
    )


def test_tables_are_rows_of_cells(tmp_path: Path) -> None:
    rows = (("Ship", "Cargo"), ("Kestrel", "tea"), ("", "salt"))
    cells = "".join(f"<w:tr>{''.join(f'<w:tc>{p(text)}</w:tc>' for text in row)}</w:tr>" for row in rows)
    assert read_document(make_docx(tmp_path, p("A") + f"<w:tbl>{cells}</w:tbl>" + p("B"))).text == (
        "A\n\nShip | Cargo\nKestrel | tea\n| salt\n\nB"
    )


def test_tracked_changes_are_read_as_accepted(tmp_path: Path) -> None:
    deleted = '<w:del w:id="1"><w:r><w:delText>old </w:delText></w:r></w:del>'
    moved = f"<w:moveFrom>{r('away ')}</w:moveFrom>"
    inserted = f"<w:ins>{r('new ')}</w:ins><w:moveTo>{r('here')}</w:moveTo>"
    ended = p("One ", properties="<w:rPr><w:del w:id='2'/></w:rPr>") + p("paragraph.")
    text = read_document(make_docx(tmp_path, p(runs=r("The ") + deleted + moved + inserted) + ended)).text
    assert text == "The new here\n\nOne paragraph."


def test_what_a_reader_does_not_see_is_left_out(tmp_path: Path) -> None:
    field = '<w:r><w:fldChar w:fldCharType="begin"/><w:instrText>PAGE \\* MERGE</w:instrText></w:r>'
    hidden = r("hidden", "<w:vanish/>") + r(" shown", '<w:vanish w:val="0"/>')
    choice = f"<AlternateContent><Choice>{r(' new')}</Choice><Fallback>{r(' old')}</Fallback></AlternateContent>"
    assert read_document(make_docx(tmp_path, p(runs=r("Text") + field + hidden + choice))).text == "Text shown new"


def styled(*styles: tuple[str, str]) -> dict[str, str]:
    """A file of styles: identifiers, and what they hold."""
    made = "".join(f'<w:style w:type="paragraph" w:styleId="{key}" {more}</w:style>' for key, more in styles)
    return {"word/styles.xml": part("styles", made)}


COURIER = '<w:rPr><w:rFonts w:ascii="Courier New"/></w:rPr>'


def test_programs_keep_their_lines_and_spaces(tmp_path: Path) -> None:
    files = styled(
        ("Code", f'><w:name w:val="Mine"/>{COURIER}'),
        ("Sub", '><w:name w:val="Sub"/><w:basedOn w:val="Code"/>'),
        ("H", '><w:name w:val="HTML Preformatted"/>'),
        ("Plain", f'><w:name w:val="P"/><w:basedOn w:val="Code"/>{COURIER.replace("Courier New", "Arial")}'),
    )
    code = p("def f():", "Code") + p("    if  x:", "Sub") + p("", "Code")
    code += p(style="H", runs="<w:r><w:tab/><w:t>return 1</w:t></w:r>")
    document = read_document(make_docx(tmp_path, p("Before  it.") + code + p("After  it.", "Plain") + p("End."), files))
    assert document.text == "Before it.\n\ndef f():\n    if  x:\n\n    return 1\n\nAfter it.\n\nEnd."


def test_notes_are_numbered_and_told_at_the_end(tmp_path: Path) -> None:
    calls = '<w:r><w:endnoteReference w:id="7"/></w:r>' + r(" and") + '<w:r><w:footnoteReference w:id="2"/></w:r>'
    notes = {
        "word/footnotes.xml": part(
            "footnotes",
            f'<w:footnote w:type="separator" w:id="-1">{p("-----")}</w:footnote>'
            f'<w:footnote w:id="2">{p(runs="<w:r><w:footnoteRef/></w:r>" + r(" Foot."))}</w:footnote>'
            f'<w:footnote w:id="3">{p("Nobody calls.")}</w:footnote>',
        ),
        "word/endnotes.xml": part("endnotes", f'<w:endnote w:id="7">{p("End.")}{p("More.")}</w:endnote>'),
    }
    document = read_document(make_docx(tmp_path, p("Tea", runs=calls), notes))
    assert document.text == "Tea[1] and[2]\n\nNotes\n\n[1] End.\n\nMore.\n\n[2] Foot."
    assert document.warnings == ()


def test_the_main_part_may_have_any_name_and_the_title_comes_from_the_properties(tmp_path: Path) -> None:
    files = {
        "_rels/.rels": relations({"officeDocument": "/word/main.xml", "metadata/core-properties": "docProps/core.xml"}),
        "word/document.xml": None,
        "word/main.xml": part("document", f"<w:body>{p(BODY)}</w:body>"),
        "docProps/core.xml": '<c xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title> My\nTitle </dc:title></c>',
    }
    document = read_document(make_docx(tmp_path, "", files, name="letter.txt"))
    assert (document.text, document.title, document.format) == (BODY, "My Title", "docx")


@pytest.mark.parametrize(
    "name", ["word/styles.xml", "word/numbering.xml", "word/_rels/document.xml.rels", "_rels/.rels"]
)
@pytest.mark.parametrize("content", [None, "no markup"])
def test_parts_that_help_may_be_missing_or_broken(tmp_path: Path, name: str, content: str | None) -> None:
    assert BODY in read_document(make_docx(tmp_path, p(BODY) + item("x", 9), {name: content})).text


# -------------------- broken, protected and hostile ones


@pytest.mark.parametrize("content", ["", "<w:document", b"\xff\xfe\x00", part("document", "<w:p></w:r>")])
def test_a_malformed_document_is_damaged(tmp_path: Path, content: str | bytes) -> None:
    with pytest.raises(DamagedDocument, match="damaged and cannot be read as a Word document"):
        read_document(make_docx(tmp_path, "", {"word/document.xml": content}))


def compound(*names: str) -> bytes:
    streams = b"".join(name.encode("utf-16-le") + bytes(64) for name in names)
    return b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(5_000) + streams


def test_a_password_and_the_old_format_have_lines_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "a.docx"
    path.write_bytes(compound("EncryptionInfo", "EncryptedPackage"))
    with pytest.raises(PasswordProtected, match=r"^a\.docx is protected by a password\. Open it with the password"):
        read_document(path)
    path.write_bytes(compound("WordDocument"))
    with pytest.raises(UnsupportedFormat, match=r"old kind \(\.doc\), which is not supported\. Open it in Word or"):
        read_document(path)
    path.write_bytes(compound("Workbook"))
    with pytest.raises(UnsupportedFormat, match="an Excel workbook"):
        read_document(path)
    path.write_bytes(compound())
    with pytest.raises(UnsupportedFormat, match="a file of an old Office program"):
        read_document(path)


def test_bombs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DocumentTooLarge, match="unpacks to more"):
        read_document(make_docx(tmp_path, p(" " * 5_000_000)))
    with pytest.raises(DocumentTooLarge):
        read_document(make_docx(tmp_path, p(BODY), {f"x{number}": "" for number in range(MAX_ENTRIES)}))
    deep = part("document", "<w:p>" * 100_000 + "</w:p>" * 100_000)
    with pytest.raises(DocumentError):
        read_document(make_docx(tmp_path, "", {"word/document.xml": deep}))
