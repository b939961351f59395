"""What a reader sees of files of each format: texts, chapters, titles, and what is refused."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from app.documents.archive import MAX_ENTRIES, MAX_TOTAL_BYTES
from app.documents.document import Document
from app.documents.errors import (
    DamagedDocument,
    DocumentTooLarge,
    EmptyDocument,
    PasswordProtected,
    ScannedDocument,
    UnsupportedFormat,
)
from app.documents.parsers.html import read_markup
from app.documents.readers import read_document
from tests.hostile.corpus import A, P, W, archive, docx, fb2, fb2_files, odt, odt_files, page, pptx, rtf, shape, slide

pytestmark = pytest.mark.usefixtures("in_this_process")

WORDS = "The pilot counted the boats that came in with the tide."
Files = Mapping[str, str | bytes]
NONE: Files = {}


def word(style: str, text: str, more: str = "") -> str:
    """A paragraph of a Word file; `more`: further properties."""
    return f'<w:p><w:pPr><w:pStyle w:val="{style}"/>{more}</w:pPr>{run(text)}</w:p>'


def run(text: str, properties: str = "") -> str:
    return f'<w:r><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def item(text: str, number: int, level: int = 0) -> str:
    return word("", text, f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{number}"/></w:numPr>')


def part(root: str, content: str) -> str:
    return f'<w:{root} xmlns:w="{W}">{content}</w:{root}>'


def style(name: str, title: str, more: str = "") -> str:
    return f'<w:style w:type="paragraph" w:styleId="{name}"><w:name w:val="{title}"/>{more}</w:style>'


COURIER = '<w:rPr><w:rFonts w:ascii="Courier New"/></w:rPr>'
STYLES = part(
    "styles",
    style("H1", "heading 1") + style("Own", "Own", '<w:basedOn w:val="H1"/>') + style("T", "Title")
    + style("Loop", "Loop", '<w:basedOn w:val="Loop"/>') + style("Code", "Mine", COURIER)
    + style("Sub", "Sub", '<w:basedOn w:val="Code"/>') + style("Pre", "HTML Preformatted")
    + style("Plain", "P", '<w:basedOn w:val="Code"/>' + COURIER.replace("Courier New", "Arial"))
    + style("N", "heading 2", '<w:pPr><w:numPr><w:numId w:val="3"/></w:numPr><w:outlineLvl w:val="1"/></w:pPr>'),
)  # fmt: skip
NUMBERING = part(
    "numbering",
    "".join(
        f'<w:abstractNum w:abstractNumId="{n}"><w:styleLink w:val="S{n}"/>'
        f'<w:lvl w:ilvl="0"><w:start w:val="{start}"/><w:numFmt w:val="{form}"/>'
        f'<w:lvlText w:val="{pattern}"/></w:lvl><w:lvl w:ilvl="1"><w:numFmt w:val="lowerLetter"/>'
        '<w:lvlText w:val="%1.%2)"/></w:lvl></w:abstractNum>'
        for n, start, form, pattern in (
            (1, 1, "bullet", "x"),
            (2, 4, "decimal", "%1."),
            (3, 1, "upperRoman", "Part %1"),
        )
    )
    + '<w:abstractNum w:abstractNumId="4"><w:numStyleLink w:val="S2"/></w:abstractNum>'
    '<w:abstractNum w:abstractNumId="7"><w:lvl w:ilvl="0"><w:numFmt w:val="upperRoman"/>'
    '<w:lvlText w:val="Article %1."/></w:lvl><w:lvl w:ilvl="1"><w:numFmt w:val="decimalZero"/>'
    '<w:lvlRestart w:val="0"/><w:isLgl/>'
    '<w:lvlText w:val="Section %1.%2"/></w:lvl></w:abstractNum>'
    + "".join(
        f'<w:num w:numId="{n}"><w:abstractNumId w:val="{kind}"/><w:lvlOverride w:ilvl="0">{own}</w:lvlOverride></w:num>'
        for n, kind, own in (
            (1, 1, ""),
            (2, 2, ""),
            (3, 3, ""),
            (4, 4, ""),
            (7, 7, ""),
            (5, 2, '<w:startOverride w:val="9"/>'),
            (6, 2, '<w:lvl w:ilvl="0"><w:numFmt w:val="upperLetter"/><w:lvlText w:val="(%1)"/></w:lvl>'),
        )
    ),
)
LINKS = "".join(
    f'<Relationship Id="{kind}" Type="x/{kind}" Target="{kind}.xml"/>'
    for kind in ("styles", "numbering", "footnotes", "endnotes")
)
WORD_PARTS: Files = {
    "word/styles.xml": STYLES,
    "word/numbering.xml": NUMBERING,
    "word/_rels/document.xml.rels": f"<Relationships>{LINKS}</Relationships>",
    "word/footnotes.xml": part(
        "footnotes",
        f'<w:footnote w:type="separator" w:id="-1">{word("", "-----")}</w:footnote><w:footnote w:id="2">'
        f"{word('', ' Foot.')}</w:footnote><w:footnote w:id='3'>{word('', 'Nobody calls.')}</w:footnote>",
    ),
    "word/endnotes.xml": part("endnotes", f'<w:endnote w:id="7">{word("", "End.")}{word("", "More.")}</w:endnote>'),
}
OPEN_STYLES = (
    '<text:list-style style:name="L"><text:list-level-style-number text:level="1" style:num-format="1" '
    'style:num-suffix="."/><text:list-level-style-number text:level="2" style:num-format="a" style:num-suffix=")" '
    'text:display-levels="2"/></text:list-style><text:outline-style style:name="Outline"><text:outline-level-style '
    'text:level="1" style:num-format="I" style:num-prefix="Part "/></text:outline-style>'
    '<style:style style:name="H"><style:text-properties text:display="none"/></style:style>'
    '<style:style style:name="U"><style:text-properties style:text-position="super 58%"/></style:style>'
    '<style:style style:name="D"><style:text-properties style:text-position="-33% 58%"/></style:style>'
)
OPEN_NOTE = (
    "<text:note><text:note-citation>*</text:note-citation>"
    "<text:note-body><text:p>{}</text:p></text:note-body></text:note>"
)
RTF_STYLES = (
    r"{\fonttbl{\f3\froman\fcharset2 Symbol;}{\f4\fcharset2 Wingdings;}}"
    r"{\stylesheet{\s1 heading 1;}{\s5\sbasedon1 Own;}{\s6\sbasedon6 Loop;}{\*\cs9 heading 1;}}"
)
RTF_ROW = r"\trowd\cellx1\cellx2\pard\intbl %s\cell %s\cell\row"
FB2_NOTES = (
    '<body name="notes"><title><p>Notes</p></title><section id="n1"><title><p>1</p></title><p>Small.</p></section>'
    '<section id="n2"><p>Lonely.</p></section></body>'
)


def content_of(kind: str, body: str, files: Files = NONE) -> bytes:
    """A file with that body."""
    match kind:
        case "docx":
            return docx(body, {**WORD_PARTS, **files})
        case "odt":
            return odt(body, files, styles=OPEN_STYLES)
        case "rtf":
            return rtf(body, RTF_STYLES)
        case "fb2":
            return fb2(body, more=FB2_NOTES if "href" in body else "")
        case "pptx":
            return pptx([slide("T", body[3:-4] if body.startswith("<t>") else body)], files)
        case "html":
            return f"<html><head><title>Not text</title></head><body>{body}</body></html>".encode()
        case _:
            return body.encode()


def opened(folder: Path, kind: str, content: bytes) -> Document:
    (folder / f"a.{kind}").write_bytes(content)
    return read_document(folder / f"a.{kind}")


def a_list(*texts: str, more: str = "") -> str:
    """An OpenDocument list."""
    items = "".join(f"<text:list-item><text:p>{text}</text:p></text:list-item>" for text in texts)
    return f"<text:list{more}>{items}</text:list>"


def rows(row: str, cell: str, texts: tuple[tuple[str, str], ...]) -> str:
    return "".join(row % "".join(cell % text for text in line) for line in texts)


SHIPS = (("Ship", "Cargo"), ("Kestrel", "tea"), ("", "salt"))
TABLES = {
    "docx": "<w:tbl>" + rows("<w:tr>%s</w:tr>", "<w:tc><w:p><w:r><w:t>%s</w:t></w:r></w:p></w:tc>", SHIPS) + "</w:tbl>",
    "odt": "<table:table>"
    + rows("<table:table-row>%s</table:table-row>", "<table:table-cell><text:p>%s</text:p></table:table-cell>", SHIPS)
    + "</table:table>",
    "rtf": "".join(RTF_ROW % line for line in SHIPS),
    "fb2": "<table>" + rows("<tr>%s</tr>", "<td>%s</td>", SHIPS) + "</table>",
    "html": "<table>" + rows("<tr>%s</tr>", "<td><p>%s</p></td>", SHIPS) + "</table>",
    "csv": "Ship,Cargo\nKestrel,tea\n,salt",
}


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_comes_row_by_row_in_every_format(kind: str, tmp_path: Path) -> None:
    text = opened(tmp_path, kind, content_of(kind, TABLES[kind])).text
    assert text.replace("\n |", "\n|") == "Ship | Cargo\nKestrel | tea\n| salt"


RAISED = '<w:vertAlign w:val="superscript"/>'
DELETED = '<w:del w:id="1"><w:r><w:delText>old </w:delText></w:r></w:del>'
ENDS = "<w:rPr><w:del w:id='2'/></w:rPr>"  # its end is deleted
CHANGED = f"<w:moveFrom>{run('away ')}</w:moveFrom><w:ins>{run('new ')}</w:ins><w:moveTo>{run('here')}</w:moveTo>"
FIELD = '<w:r><w:fldChar w:fldCharType="begin"/><w:instrText>PAGE \\* MERGE</w:instrText></w:r>'
SUMS = '<m:oMath xmlns:m="x">{}</m:oMath>'.format(
    "<m:f><m:num>{}</m:num><m:den>{}</m:den></m:f><m:sSup><m:e>{}</m:e><m:sup>{}</m:sup></m:sSup>".format(
        *(f"<m:r><m:t>{letters}</m:t></m:r>" for letters in ("a", "b+c", "10", "6"))
    )
)
TEXT = "<m:e><m:r><m:t>{}</m:t></m:r></m:e>"
ROOTS = "".join(
    (
        f"<m:d>{TEXT.format('a')}{TEXT.format('b')}</m:d>",
        '<m:nary><m:naryPr><m:chr m:val="∑"/></m:naryPr><m:sub><m:r><m:t>i</m:t></m:r></m:sub><m:sup><m:r><m:t>9</m:t>',
        '</m:r></m:sup><m:e><m:d><m:dPr><m:begChr m:val="["/><m:endChr m:val="]"/></m:dPr>',
        f"{TEXT.format('x')}</m:d></m:e></m:nary><m:rad><m:deg/>{TEXT.format('y')}</m:rad>",
        f"<m:rad><m:deg><m:r><m:t>3</m:t></m:r></m:deg>{TEXT.format('z')}</m:rad><m:nary>{TEXT.format('w')}</m:nary>",
    )
)
ROOTS = f'<m:oMath xmlns:m="x">{ROOTS}</m:oMath>'
HIDDEN = run("hidden", "<w:vanish/>") + run(" shown", '<w:vanish w:val="0"/>')
CHOICE = f"<AlternateContent><Choice>{run(' new')}</Choice><Fallback>{run(' old')}</Fallback></AlternateContent>"
INNER = f"<text:list-item><text:p>two</text:p>{a_list('in')}</text:list-item>"
POEM = "<poem><stanza><v>One</v><v>two</v></stanza><stanza><v>three</v></stanza><text-author>Reed</text-author></poem>"
NUMBER = '<a:pPr{}><a:buAutoNum type="{}"{}/></a:pPr>'
CASES = [
    ("docx", word("T", "The Harbour") + word("H1", "Quay") + word("N", "Tide"), "The Harbour\n\nQuay\n\nPart I Tide"),
    ("docx", item("rope", 1) + item("salt", 2) + item("fine", 2, 1) + item("coarse", 2, 1) + item("tea", 2)
     + word("", "Go.") + item("again", 2), "• rope\n4. salt\n  4.a) fine\n  4.b) coarse\n5. tea\n\nGo.\n\n6. again"),
    ("docx", "".join(item(text, number) for text, number in (("a", 2), ("b", 4), ("nine", 5), ("ten", 5), ("c", 6))),
     "4. a\n5. b\n9. nine\n10. ten\n(F) c"),
    ("docx", "<w:p>" * 3_000 + run("Deep.") + "</w:p>" * 3_000, "Deep."),
    ("docx", f"<w:p>{run('The ')}{DELETED}{CHANGED}</w:p>", "The new here"),
    ("docx", word("", "One ", ENDS) + word("", "paragraph."), "One paragraph."),
    ("docx", item("a", 2) + item("b", 2) + item("", 2).replace(run(""), DELETED).replace("<w:pPr>", f"<w:pPr>{ENDS}")
     + item("c", 2), "4. a\n5. b\n6. c"),
    ("docx", f"<w:tbl><w:tr><w:tc>{item('a', 2)}{item('b', 2)}</w:tc><w:tc>{item('c', 1)}</w:tc></w:tr></w:tbl>",
     "4. a\n5. b | • c"),
    ("docx", f"<w:p>{run('Text')}{FIELD}{HIDDEN}{CHOICE}</w:p>", "Text shown new"),
    ("docx", f"<w:p>{run('It is ')}{SUMS}</w:p>", "It is a/(b+c)10^6"),
    ("docx", f"<w:p>{run('f')}{ROOTS}</w:p>", "f(a|b)∑_i^9[x]√(y)√[3](z)∫w"),
    ("docx", word("", "Before  it.") + word("Code", "def f():") + word("Sub", "    if  x:") + word("Code", "")
     + word("Pre", "").replace("<w:t ", "<w:tab/><w:t ").replace("></w:t>", ">return 1</w:t>")
     + word("Plain", "After  it."), "Before it.\n\ndef f():\n    if  x:\n\n    return 1\n\nAfter it."),
    ("docx", f'<w:p>{run("Tea")}<w:r><w:endnoteReference w:id="7"/></w:r>{run(" and")}<w:r>'
     '<w:footnoteReference w:id="2"/></w:r></w:p>', "Tea[1] and[2]\n\nNotes\n\n[1] End.\n\nMore.\n\n[2] Foot."),
    ("docx", f'<w:p>{run("a")}<w:r><w:noBreakHyphen/><w:br/><w:sym w:font="Symbol" w:char="F061"/><w:txbxContent>'
     f"{word('', 'In a box.')}</w:txbxContent></w:r></w:p>{word('', 'z')}", "a-\nα\n\nIn a box.\n\nz"),
    ("docx", '<w:p><w:sym w:font="Symbol" w:char="F0A3"/><w:sym w:font="Wingdings" w:char="F0E0"/>'
     '<w:sym w:font="Webdings" w:char="F0E0"/></w:p>', "≤→�"),
    ("docx", f'<w:p>{run("10")}{run("-6", RAISED)}{run(" on the 19")}{run("th", RAISED)}{run(" x")}{run("n+1", RAISED)}'
     "</w:p>", "10^-6 on the 19th x^(n+1)"),
    ("docx", "".join(item("x", 7, level) for level in (0, 1, 1, 0, 1)),
     "Article I. x\n  Section 1.01 x\n  Section 1.02 x\nArticle II. x\n  Section 2.03 x"),
    ("odt", '<text:p>10<text:span text:style-name="U">6</text:span> to<text:span text:style-name="D">2</text:span>'
     "</text:p>", "10^6 to2"),
    ("odt", f'<text:list text:style-name="L">{a_list("one")[11:-12]}{INNER}</text:list><text:p>Go.</text:p>'
     + a_list("three", more=' text:style-name="L" text:continue-numbering="true"') + a_list("free"),
     "1. one\n2. two\n  2.a) in\n\nGo.\n\n3. three\n• free"),
    ("odt", f"<text:p>Boats{OPEN_NOTE.format('Small.')} and ships{OPEN_NOTE.format('Big.')}.</text:p>",
     "Boats[1] and ships[2].\n\nNotes\n\n[1] Small.\n\n[2] Big."),
    ("odt", "<text:tracked-changes><text:changed-region><text:deletion><text:p>deleted</text:p></text:deletion>"
     '</text:changed-region></text:tracked-changes><text:p>Seen<text:span text:style-name="H"> hidden</text:span>'
     "<office:annotation><text:p>said</text:p></office:annotation> by<text:s/>all<text:tab/>of<text:line-break/>us"
     '<text:title>: a field</text:title>.</text:p><text:section text:display="none"><text:p>behind</text:p>'
     "</text:section>", "Seen by all of\nus: a field."),
    ("odt", "<draw:frame><draw:text-box><text:p>In a box.</text:p></draw:text-box></draw:frame><text:p>z</text:p>",
     "In a box.\n\nz"),
    ("rtf", r"\pard One \b bold\b0  word\line below.\par\pard Two\tab tabs\emdash\ldblquote x\rdblquote .\par}junk",
     "One bold word\nbelow.\n\nTwo tabs—“x”."),
    ("rtf", r"\pard \'e9t\'e9\par", "été"),
    ("rtf", r"\pard \'cc{\deff0\'e8\f9\'e8\plain\'f0}\par", "Ìиè\u0440"),  # the default font
    ("rtf", "\\pard \\f1 \\'93\r\n\\'8c\\'8b\\'9e\\par", "東京"),  # two bytes a letter
    ("rtf", r"\pard {\f0 \'e8}\'e9\par", "иé"),  # the font's character set
    ("rtf", r"\pard \uc2\u26481 \'93\'8c\uc0\u20140 x\par", "東京x"),
    ("rtf", r"\pard \u55357 ?\u56832 ?\par", "\N{GRINNING FACE}"),
    ("rtf", r"\pard 10{\super 6} 19\super th\nosupersub  "
     r"{\f3 p\'a30,\u-3933 ?\'b1}\f4\'a7\par", "10^6 19th π≤0,≤±§"),
    ("rtf", r"\pard {\f1 a{\*\cs7 b}\*\cs7 c{\*\other d}}\par", "abc"),
    ("rtf", r"\pard a\~b\_c\-d\{e\}\par", "a b-cd{e}"),
    ("rtf", r"\pard Boats{\super\chftn}{\*\footnote\chftn \pard Small.\par} came.\par",
     "Boats[1] came.\n\nNotes\n\n[1] Small."),
    ("rtf", r"{\info{\hlinkbase http://a}}{\header On each page}{\footer 1}\pard "
     r"Seen by all of us here{\v not}{\deleted gone}"
     r'{\*\annotation a}{\*\x y}{\field{\*\fldinst HYPERLINK "x"}{\fldrslt  by all}}{\pict ffd8}'
     r"{\*\bkmkstart a}.\par",
     "Seen by all of us here by all."),
    ("rtf", r"{\pard {\pntext\f0 1.\tab}one\par {\listtext\f9 \'b7\tab}\ilvl1 two\par}", "1. one\n  • two"),
    ("rtf", r"\pard\intbl\itap1 a\cell" + r"\pard\intbl\itap2 b\nestcell c\nestcell"
     r"{\*\nesttableprops\trowd\cellx1\nestrow}{\nonesttables\par}" * 2 + r"\pard\intbl\itap1\cell\row\pard End.\par",
     "a | b | c\nb | c\n\nEnd."),
    ("fb2", f"<section><p>a</p>{POEM}<empty-line/><subtitle>* * *</subtitle><p>b</p></section>",
     "a\n\nOne\ntwo\n\nthree\n\nReed\n\n* * *\n\nb"),
    ("fb2", "<p>10<sup>6</sup></p>", "10^6"),
    ("fb2", "<p>caf&eacute;&nbsp;&amp; bar &harbour;</p>", "café & bar &harbour;"),
    ("fb2", '<p>Boats<a type="note" l:href="#n1">*</a> came.</p>',
     "Boats[1] came.\n\nNotes\n\nNotes\n\n[1] Small.\n\nLonely."),
    ("fb2", '<section id="a"><p>Boats<a type="note" l:href="#n5">*</a> came.</p></section></body><body name="More">'
     '<section id="n5"><title><p>1</p></title><p>Tiny.</p></section><section id="b"><p>An appendix.</p></section>',
     "Boats[1] came.\n\nAn appendix.\n\nNotes\n\nNotes\n\n[1] Tiny.\n\nSmall.\n\nLonely."),
    ("pptx", "<t>one</a:t></a:r></a:p>" + '<a:p><a:pPr lvl="1"/><a:r><a:t>in</a:t></a:r></a:p>'
     + "<a:p><a:pPr><a:buNone/></a:pPr><a:r><a:t>none</a:t></a:r></a:p><a:p>"
     + NUMBER.format("", "alphaLcParenR", ' startAt="3"') + "<a:r><a:t>c</a:t></a:r></a:p><a:p>"
     + NUMBER.format("", "alphaLcParenR", ' startAt="3"') + "<a:r><a:t>d</a:t></a:r></a:p><a:p>"
     + NUMBER.format(' lvl="1"', "romanUcPeriod", "") + "<a:r><a:t>deep</a:t></a:r></a:p><a:p><a:r><a:t>last</t>",
     "T\n\n• one\n  • in\nnone\nc) c\nd) d\n  I. deep\n• last"),
    ("pptx", "<t>10</a:t></a:r>" + '<a:r><a:rPr baseline="30000"/><a:t>6</t>', "T\n\n• 10^6"),
    ("html", "<div><h2>Chapter 1:\n  The Quay</h2><p>The <i>old</i> pilot<b>s</b>\n stood.</p><p/>\n<p>He.</p></div>",
     "Chapter 1: The Quay\n\nThe old pilots stood.\n\nHe."),
    ("html", "<p>Bring:</p><ol start='3'><li>rope<ul><li>long</li><li></li></ul></li><li><p>salt</p></li></ol>"
     "<p>Go.</p>", "Bring:\n\n3. rope\n  • long\n4. salt\n\nGo."),
    ("html", "<ol type=a><li>one<li value=5>five<li>six</ol><ol type=I><li>one</ol>",
     "a. one\ne. five\nf. six\n\nI. one"),
    ("html", f"<script>if (a < b) x();</script><style/>A<svg><text>draw</text></svg>.<!-- --><ruby>字<rt>ji</rt></ruby>"
     f"{WORDS}", f"A.字{WORDS}"),
    ("html", '<p>a</p><div><div class="line">Tiger</div><div class="line">bright</div></div><p>b</p>',
     "a\n\nTiger\nbright\n\nb"),
    ("html", '<div><p class="verse x">One</p><p class="verse">two</p></div><p class="versed">3</p>', "One\ntwo\n\n3"),
    ("html", "<p>10<sup>6</sup>, 19<sup>th</sup>, <sup>2</sup>, m<sup>2+n</sup><sub>2</sub>, 1998<sup><a href='#n'>3"
     "</a>,<a>4</a></sup>, 1999<a href='#m' epub:type='noteref'>5</a><sup><a>[<i>6</i>]</a></sup>, 7<sup>*</p>"
     "<p>1<b>2</b></p>",
     "10^6, 19th, 2, m^(2+n)2, 1998[3],[4], 1999[5][6], 7*\n\n12"),
    ("html", "<p><math><semantics><mrow><mfrac><mn>1</mn><mrow><mi>x</mi><mo>+</mo><mn>2</mn></mrow></mfrac><mo>=</mo>"
     "<msup><mi>e</mi><mn>2</mn></msup><msqrt><mi>a</mi></msqrt></mrow><annotation encoding='application/x-tex'>e"
     "</annotation></semantics></math>.</p>", "1/(x+2)=e^2√a."),
    ("html", "<p>One,<br/>&#160;&#160;two<br/> &emsp;&emsp;three &#160; four</p>", "One,\n  two\n  three four"),
    ("html", '<table><tr><td class="linenos"><div><pre>1\n2</pre></div></td><td class="code"><pre>def f():\n    pass'
     "</pre></td></tr></table>", "def f():\n    pass"),
    ("html", '<pre><span class="linenos">1</span>a\n<span class="lineno">2</span>  b</pre>', "a\n  b"),
    ("html", "<pre><div>a</div><div>  b</div></pre><p>c</p>", "a\n  b\n\nc"),
    ("html", "caf&eacute;&nbsp;&amp; bar&mdash;&#8220;&lt;b&gt;&#x201D; &harbour;", "café & bar—“<b>” &harbour;"),
    ("html", "<h2>C#<a href='#c'>#</a></h2><p># <a href='#p'>¶</a></p>", "C#\n\n# ¶"),
    ("html", "<p>A.<p>B.</div></p>", "A.\n\nB."),
    ("html", "<p class=x'>A.</p><p>B.", "A.\n\nB."),
    ("html", "&lt;script&gt;alert(1)&lt;/script&gt;\ufdd0\ufdd1", "<script>alert(1)</script>"),
    *(("csv", content, "Name | Tons\nGull | 12") for content in (
        "Name,Tons\nGull,12\n", "Name;Tons\r\nGull;12\r\n", "Name\tTons\rGull\t12", "\ufeffName|Tons\nGull|12",
        '"Name","Tons"\n"Gull","12"', "sep=#\nName#Tons\nGull#12\n", "Name,Tons\n\n  Gull ,12\n",
        "SEP=\t\r\nName\tTons\r\nGull\t12\r\n")),
    ("csv", 'Name,Said\nGull,"a, ""b""\nc"\n', 'Name | Said\nGull | a, "b" c'),
    ("csv", 'Name\tSaid\nGull\t"a\nb"\n', "Name | Said\nGull | a b"),
    ("csv", 'Name\tSaid\nGull\t"hi\nTern\t"hi" there\n', 'Name | Said\nGull | "hi\nTern | "hi" there'),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "body", "text"), CASES, ids=lambda value: value[:40])
def test_texts_are_what_a_reader_sees(kind: str, body: str, text: str, tmp_path: Path) -> None:
    document = opened(tmp_path, kind, content_of(kind, body))
    assert (document.text, document.format, document.warnings) == (text, kind, ())


@pytest.mark.parametrize(
    ("kind", "body", "chapters"),
    [
        ("docx", word("H1", "Quay") + word("", WORDS) + word("Own", "Tide") + word("Loop", WORDS), ["Quay", "Tide"]),
        ("odt", "".join(f'<text:h text:outline-level="1">{t}</text:h><text:p>w</text:p>' for t in ("Ebb", "Flood")),
         ["Part I Ebb", "Part II Flood"]),
        ("rtf", r"\pard\s1 A\par\pard x\par{\pard\outlinelevel0 B\par}\pard\s5 C\par\pard\s6 y\par"
         r"\pard\outlinelevel9 z\par",
         ["A", "B · C"]),
        ("fb2", "<title><p>Reed</p><p>The Log</p></title><section><title><p>One</p><p>Ebb</p></title><p>A gull.</p>"
         "</section><section><title><p>Two</p></title><p>Boats.</p></section>", ["One Ebb", "Two"]),
        ("html", f"<nav>Home</nav><h1>A</h1><h2>Quay</h2><p>{WORDS}</p><h2>Tide</h2><p>{WORDS}</p>", ["Quay", "Tide"]),
    ],
)  # fmt: skip
def test_headings_are_chapters(kind: str, body: str, chapters: list[str], tmp_path: Path) -> None:
    document = opened(tmp_path, kind, content_of(kind, body))
    assert [chapter.title for chapter in document.chapters] == chapters and not document.has_own_pages


def test_a_formula_of_an_open_document_is_text_and_another_object_a_picture(tmp_path: Path) -> None:
    body = "".join(f'<text:p>{WORDS}<draw:object xlink:href="./{name}"/>.</text:p>' for name in ("A", "B", "C"))
    math = "<math><mfrac><mn>1</mn><mi>x</mi></mfrac></math>"
    files = {"A/content.xml": math, "B/content.xml": f"<office:document-content>{' ' * 1000}{math}"}
    document = opened(tmp_path, "odt", odt(body, files))
    assert document.text == f"{WORDS}1/x.\n\n{WORDS}.\n\n{WORDS}."


def test_slides_are_pages_with_labels_notes_and_diagrams(tmp_path: Path) -> None:
    link = '<Relationship Id="{0}" Type="x/{1}" Target="../{0}.xml"/>'
    notes = f'<p:notes xmlns:a="{A}" xmlns:p="{P}">{shape("Say it slowly.")}{shape("4", "sldNum")}</p:notes>'
    point = "<d:pt><d:t><a:p><a:r><a:t>First step</a:t></a:r></a:p></d:t></d:pt>"
    links = f"<Relationships>{link.format('n', 'notesSlide')}{link.format('d', 'diagramData')}</Relationships>"
    files = {
        "ppt/slides/_rels/slide1.xml.rels": links,
        "ppt/n.xml": notes,
        "ppt/d.xml": f'<d:dataModel xmlns:a="{A}" xmlns:d="d">{point}</d:dataModel>',
    }
    slides = [slide("Ebb", WORDS), slide("Flood", "A gull."), slide("", "Only text.")]
    document = opened(tmp_path, "pptx", pptx(slides, files))
    assert document.text.startswith(f"Ebb\n\n• {WORDS}\n\nFirst step\n\nNotes: Say it slowly.\n\nFlood\n\n• A gull.")
    assert document.has_own_pages and [page.label for page in document.pages] == ["1", "2", "3"]
    assert [(chapter.title, chapter.first_page) for chapter in document.chapters] == [("Ebb", 1), ("Flood", 2)]


def test_slides_of_images_and_damaged_ones_are_named(tmp_path: Path) -> None:
    picture = slide("", "", "<p:pic><a:blip/></p:pic>")
    document = opened(tmp_path, "pptx", pptx([slide("T", WORDS * 3), picture, "<p:sld", slide("U", WORDS * 3)]))
    assert document.warnings == (
        "Only images, which are not read: slides 2.",
        "Missing or damaged, so that text is lost: slides 3.",
    )


SAID = "<dc:creator>Ann Reed; Bo Lee</dc:creator><dc:language>de</dc:language>"
CORE = f'<c xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title> My\nTitle </dc:title>{SAID}</c>'
META = CORE.replace("<dc:creator>", "<dc:creator>Who edited it</dc:creator><initial-creator>").replace(
    "Lee</dc:creator>", "Lee</initial-creator>"
)
PACKAGE_LINKS = (
    '<Relationships><Relationship Type="x/officeDocument" Target="/word/main.xml"/>'
    '<Relationship Type="x/core-properties" Target="core.xml"/></Relationships>'
)
SLIDE_LINKS = PACKAGE_LINKS.replace("/word/main.xml", "ppt/presentation.xml")
WRITERS = "".join(
    f"<author><first-name>{first}</first-name>\n<last-name>{last}</last-name></author>"
    for first, last in (("Ann", "Reed"), ("Bo", "Lee"))
)
MAIN = part("document", word("", WORDS))
WEB_HEAD = b"<html><head><title> My\nTitle </title><meta name=author content='Ann Reed; Bo Lee'></head><body lang=de>"


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("docx", docx("", {"_rels/.rels": PACKAGE_LINKS, "core.xml": CORE, "word/main.xml": MAIN})),
        ("odt", odt(f"<text:p>{WORDS}</text:p>", {"meta.xml": META})),
        ("pptx", pptx([slide("T", WORDS)], {"_rels/.rels": SLIDE_LINKS, "core.xml": CORE})),
        ("rtf", rtf(WORDS, r"{\info{\title My Title}{\author Ann R\'65ed; Bo Lee}}")),
        ("fb2", fb2(f"<p>{WORDS}</p>", "My\nTitle</book-title><lang>de</lang>" + WRITERS + "<book-title>")),
        ("html", WEB_HEAD + WORDS.encode()),
    ],
    ids=["docx", "odt", "pptx", "rtf", "fb2", "html"],
)
def test_a_file_states_its_title_authors_and_language(kind: str, content: bytes, tmp_path: Path) -> None:
    document = opened(tmp_path, kind, content)
    assert (document.title, document.authors) == ("My Title", ("Ann Reed", "Bo Lee"))
    assert document.language == "de" or kind == "rtf"


def test_a_title_may_be_a_paragraph_of_that_style(tmp_path: Path) -> None:
    content = docx(word("T", "Harbour") + word("", WORDS), WORD_PARTS)
    assert opened(tmp_path, "docx", content).title == "Harbour"


def test_a_note_that_is_called_and_not_there_is_told(tmp_path: Path) -> None:
    book = opened(tmp_path, "fb2", fb2('<p>a<a type="note" l:href="#n9">*</a></p>'))
    assert "text is missing" in book.warnings[0]


@pytest.mark.parametrize(
    "name", ["word/styles.xml", "word/numbering.xml", "word/_rels/document.xml.rels", "_rels/.rels"]
)
def test_parts_that_help_may_be_broken(tmp_path: Path, name: str) -> None:
    body = f"<w:p>{run(WORDS)}</w:p>" + item("x", 9)
    assert WORDS in opened(tmp_path, "docx", content_of("docx", body, {name: "no markup"})).text


@pytest.mark.parametrize("encoding", ["utf-8", "windows-1251", "utf-16"])
@pytest.mark.parametrize("kind", ["fb2", "html"])
def test_declared_encodings_are_used(tmp_path: Path, kind: str, encoding: str) -> None:
    start = f'<?xml version="1.0" encoding="{encoding}"?>'
    made = fb2("<p>Мир лодок</p>", start=start).decode() if kind == "fb2" else page("Мир лодок", start=start)
    assert opened(tmp_path, kind, made.encode(encoding)).text == "Мир лодок"


@pytest.mark.parametrize(
    "around",
    [
        "<nav>{}</nav>", "<footer>{}</footer>", "<div hidden>{}</div>", "<button>{}</button>", "<dialog>{}</dialog>",
        "<div aria-hidden='true'><div>{}</div></div>", "<div role='Navigation'>{}</div>", "<noscript>{}</noscript>",
        "<select><option>{}</select>",
    ],
)  # fmt: skip
def test_what_stands_around_the_text_is_left_out_of_a_page_and_of_no_book(around: str) -> None:
    markup = f"<html><body>{around.format('AROUND')}<p>{WORDS}</p></body></html>"
    assert read_markup(markup, as_web_page=True).lines.marked().text == WORDS
    assert "AROUND" in read_markup(markup).lines.marked().text


@pytest.mark.parametrize(
    "markup",
    [
        f"<nav><a>x</a><p>{WORDS}</p></body></html>", f"<div hidden><p>{WORDS}</p>", f"<nav><p>{WORDS}</p></nav>",
        f"<head><title>T</title><p>{WORDS}</p>", f"<article><footer>{WORDS}</footer></article>",
        f"<div hidden='until-found'>{WORDS}</div>", f"<p hidden>a<p>{WORDS}",
    ],
)  # fmt: skip
def test_sloppy_or_odd_pages_never_lose_their_text(markup: str) -> None:
    assert WORDS in read_markup(f"<html>{markup}", as_web_page=True).lines.marked().text


def test_the_head_of_a_table_stands_on_every_page(tmp_path: Path) -> None:
    boats = "".join(f"Boat number {n},{n}\n" for n in range(900))
    document = opened(tmp_path, "csv", f"Name,Tons\n{boats}".encode())
    assert {document.page_text(page).partition("\n")[0] for page in document.pages} == {"Name | Tons"}
    assert [line for line in document.text.splitlines() if line[0:1] == "B"] == boats.replace(",", " | ").splitlines()
    for head in ("1,2", "a,a", "a,", "a" * 400 + ",b"):
        assert "\n\n" not in opened(tmp_path, "csv", f"{head}\n{boats}".encode()).text, "it names no columns"


def compound(*names: str) -> bytes:
    return b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(5_000) + "".join(names).encode("utf-16-le")


PICTURE = slide("", "", "<p:pic><a:blip/></p:pic>")


@pytest.mark.parametrize(
    ("kind", "content", "error", "words"),
    [
        ("docx", docx("<w:p></w:r>"), DamagedDocument, "cannot be read as a Word document"),
        ("docx", docx(word("", " " * 5_000_000)), DocumentTooLarge, "holds more than any book"),
        ("docx", docx("", {f"x{number}": "" for number in range(MAX_ENTRIES)}), DocumentTooLarge, ""),
        ("docx", compound("EncryptionInfo", "EncryptedPackage"), PasswordProtected, "Open it with the password"),
        ("docx", compound("WordDocument"), UnsupportedFormat, r"old kind \(\.doc\), which is not supported"),
        ("docx", compound("Workbook"), UnsupportedFormat, "an Excel workbook"),
        ("docx", compound(), UnsupportedFormat, "a file of an old Office program"),
        ("odt", odt_files()["with a password"](), PasswordProtected, "protected by a password"),
        ("odt", odt_files()["no content"](), DamagedDocument, "not an OpenDocument text"),
        ("odt", odt_files()["a laugh"](), UnsupportedFormat, "declares XML entities"),
        ("odt", odt_files()["another root"](), DamagedDocument, "not an OpenDocument text"),
        ("ods", odt("").replace(b"document.text", b"document.spreadsheet"), UnsupportedFormat, "spreadsheet.* as CSV"),
        ("odp", odt("").replace(b"document.text", b"document.presentation"), UnsupportedFormat, "presentation.* .pptx"),
        *(("rtf", rtf(r"\pard " + "Words. " * 40)[:-cut], DamagedDocument, "is cut off") for cut in (3, 40, 120)),
        ("fb2", fb2_files()["a laugh"](), UnsupportedFormat, "declares XML entities"),
        ("fb2", fb2_files()["a prefix that nobody declared"](), DamagedDocument, ""),
        ("fb2", fb2_files()["sections that never end"](), DamagedDocument, ""),
        ("pptx", pptx([PICTURE, PICTURE]), ScannedDocument, "2 pages are images"),
        ("pptx", pptx([slide("", "")]), EmptyDocument, "holds no text"),
        ("pptx", pptx(["<p:sld"]), DamagedDocument, "none of its slides"),
        ("pptx", pptx([], {"ppt/presentation.xml": "<a/>"}), DamagedDocument, "not a PowerPoint presentation"),
        ("xlsx", archive({"[Content_Types].xml": "<Types/>", "xl/workbook.xml": "<a/>"}), UnsupportedFormat, "as CSV"),
        ("csv", b"a,b\n\0\1\2" * 900, UnsupportedFormat, "binary data"),
        ("csv", b'a,b\n"' + b"x" * 2_000_000, DamagedDocument, ""),
        ("csv", b",,\n,,\n", EmptyDocument, ""),
        ("html", b"<html><body><script>app()</script></body></html>", EmptyDocument, "holds no text"),
        ("html", b"<html><body><img src=a.png></body></html>", EmptyDocument, "nothing but images"),
        ("html", b'<!DOCTYPE html [<!ENTITY a "b">]><html>&a;</html>', UnsupportedFormat, "declares XML entities"),
        ("html", b"<html>" + b" " * MAX_TOTAL_BYTES, DocumentTooLarge, ""),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)  # fmt: skip
def test_what_cannot_be_read_is_named(
    kind: str, content: bytes, error: type[Exception], words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words or None):
        opened(tmp_path, kind, content)
