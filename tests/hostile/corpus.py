"""Hostile files in every format that the app opens: the same for the same seed, on every machine.

Each format has files made by hand, each with one idea of harm in it, and damaged copies of a good file up to the
number that is wanted. Their names are as hostile as what is in them.
"""

import io
import os
import random
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.hostile.atoms import ATOMS

Make = Callable[[], bytes]
Files = dict[str, Make]
SEED, PER_FORMAT = 22, 80
WORDS = "The pilot counted the boats that came in with the tide, and wrote down their names one by one. "
MARKUP = (
    '<script>alert(1)</script><img src=x onerror=alert(1)>"><svg onload=alert(1)> javascript:alert(1) {{7*7}} '
    "<|im_start|>system<|im_end|><|endoftext|></s>[INST] \u202egnp.exe\u2066\u200f \x1b[2J\x07"
)
NAMES = (
    "<img src=x onerror=alert(1)>", "\u202ecod.exe", "<|im_start|>system", "a\nb\tc", "-rf --", "CON", "a" * 150, "  ",
    "\U0001f600\u0301" * 20, "..%2f..%2fetc%2fpasswd", "$(id) `id` ; id", "%s%n{0}{x!r}", os.fsdecode(b"\xff\xfe"),
    '"><script>alert(1)</script>', "\u0000".replace("\0", "\x01\x1b[31m"), "a'--b", "book", "[x](javascript:alert(1))",
)  # fmt: skip
SUFFIXES = {
    "pdf": ".pdf", "epub": ".epub", "docx": ".docx", "html": ".html", "markdown": ".md", "text": ".txt",
    "odt": ".odt", "rtf": ".rtf", "pptx": ".pptx", "fb2": ".fb2", "csv": ".csv", "zip": ".zip", "old office": ".doc",
    "other": "",
}  # fmt: skip
FORMATS = tuple(SUFFIXES)
W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
LAUGHS = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">]>'
OUTSIDE = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
MARKED = MARKUP.replace("<", "&lt;").replace("\x1b", "").replace("\x07", "")
CODECS = ("zlib_codec", "rot13", "idna", "unicode_escape", "utf-7", "punycode", "utf-16", "x" * 40, "undefined")


@dataclass(frozen=True, slots=True)
class HostileFile:
    """One file of the corpus."""

    format: str
    number: int  # among those of its format
    what: str
    name: str
    make: Make

    def write(self, folder: Path) -> Path:
        """Into a folder, under its own name, or a plain one where the file system refuses that."""
        content = self.make()
        try:
            path = folder / self.name
            path.write_bytes(content)
        except (OSError, ValueError):
            path = folder / f"file{SUFFIXES[self.format]}"
            path.write_bytes(content)
        return path


def corpus(per_format: int = PER_FORMAT, seed: int = SEED, formats: Sequence[str] = FORMATS) -> Iterator[HostileFile]:
    """All files, format by format: those made by hand, then damaged copies."""
    for kind in formats:
        made = MADE[kind]()
        for number in range(max(per_format, len(made))):
            chance = random.Random(f"{seed} {kind} {number}")
            name = NAMES[chance.randrange(len(NAMES))] + SUFFIXES[kind]
            if number < len(made):
                what, make = list(made.items())[number]
            else:
                what, make = damaged(kind, chance)
            yield HostileFile(kind, number, what, name, make)


def damaged(kind: str, chance: random.Random) -> tuple[str, Make]:
    """A good file with something wrong, and what."""
    whole = good(kind)
    at, count = chance.randrange(len(whole)), chance.choice((1, 3, 20, 200))
    places = [chance.randrange(8 * len(whole)) for _ in range(count)]
    atom = chance.choice(ATOMS).encode("utf-8", "surrogatepass") * chance.choice((1, 50, 2_000))
    other = good(chance.choice(FORMATS))
    span = chance.randrange(1, 400)
    ways: tuple[tuple[str, Make], ...] = (
        ("cut off", lambda: whole[:at]),
        ("bits flipped", lambda: flipped(whole, places)),
        ("begins late", lambda: whole[at:]),
        ("a part twice", lambda: whole[: at + span] + whole[at:]),
        ("a part missing", lambda: whole[:at] + whole[at + span :]),
        ("zeros in it", lambda: whole[:at] + bytes(span) + whole[at + span :]),
        ("junk in it", lambda: whole[:at] + atom + whole[at:]),
        ("two files in one", lambda: whole[:at] + other + whole[at:]),
        ("junk around it", lambda: atom[:900] + whole + atom),
    )
    return chance.choice(ways)


def flipped(whole: bytes, places: Sequence[int]) -> bytes:
    changed = bytearray(whole)
    for place in places:
        changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


TEXT = WORDS * 5 + MARKUP
GOOD: Mapping[str, Make] = {  # files with nothing wrong but their text
    "pdf": lambda: pdf(pages(3)),
    "epub": lambda: epub({f"OPS/s{n}.xhtml": page(f"<h1>Chapter {n}</h1><p>{WORDS}</p>") for n in range(1, 4)}),
    "docx": lambda: docx(paragraphs(20)),
    "html": lambda: page(f"<h1>Chapter 1</h1><p>{WORDS}</p><ul><li>{WORDS}</ul><table><tr><td>1</table>" * 3).encode(),
    "odt": lambda: odt(f"<text:h text:outline-level='1'>Chapter 1</text:h>{ODT_WORDS}{ODT_TABLE}" * 3),
    "rtf": lambda: rtf("{\\pard\\outlinelevel0 Chapter 1\\par}\\pard " + WORDS + RTF_NOTE + "\\par" + RTF_ROW * 3),
    "pptx": lambda: pptx([slide(f"Slide {n}", WORDS) for n in range(1, 4)]),
    "fb2": lambda: fb2(f"<section><title><p>Chapter 1</p></title><p>{WORDS}</p></section>" * 3),
    "csv": lambda: ("name,tons,words\n" + f'Gull,12,"{WORDS}"\n' * 20).encode(),
    "zip": lambda: archive({"1.txt": WORDS, "b/2.md": f"# Chapter 1\n\n{WORDS}", "b/10.html": page(f"<p>{WORDS}</p>")}),
    "old office": lambda: COMPOUND + bytes(512) + ("WordDocument" + TEXT).encode("utf-16-le"),
    "other": lambda: b"\x89PNG\r\n\x1a\n" + bytes(200),
}


@cache
def good(kind: str) -> bytes:
    """A file of a format, of text where no other is made."""
    return GOOD[kind]() if kind in GOOD else f"# Chapter 1\n\n{TEXT}\n\nChapter 2\n\n{TEXT}\n\f{TEXT}\n".encode()


# -------------------- PDF


def pdf(objects: Mapping[int, bytes], trailer: bytes = b"") -> bytes:
    """A PDF of objects by number; 1 is the catalogue."""
    out, offsets = bytearray(b"%PDF-1.7\n"), dict[int, int]()
    for number, content in objects.items():
        offsets[number] = len(out)
        out += b"%d 0 obj\n" % number + content + b"\nendobj\n"
    start, last = len(out), max(objects)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (last + 1)
    for number in range(1, last + 1):
        out += b"%010d 00000 n \n" % offsets[number] if number in offsets else b"0000000000 65535 f \n"
    return bytes(out + b"trailer\n<</Size %d/Root 1 0 R %s>>\nstartxref\n%d\n%%%%EOF\n" % (last + 1, trailer, start))


def stream(content: bytes, head: bytes = b"", length: int | None = None) -> bytes:
    return b"<<%s/Length %d>>stream\n%s\nendstream" % (head, len(content) if length is None else length, content)


def packed(content: bytes, head: bytes = b"/Filter/FlateDecode") -> bytes:
    return stream(zlib.compress(content, 9), head)


FONT = b"<</Type/Font/Subtype/Type1/BaseFont/Times-Roman>>"
SHOWN = (
    b"BT /F1 11 Tf 50 700 Td (" + WORDS.encode() + b") Tj 0 -14 Td (<script>alert\\(1\\)</script> <|im_start|>) Tj ET"
)


def pages(count: int = 1, content: bytes = b"", more: bytes = b"", extra: Mapping[int, bytes] = {}) -> dict[int, bytes]:
    """The objects of a document whose pages share one content stream, object 3; 4 is the font."""
    kids = b" ".join(b"%d 0 R" % (number + 10) for number in range(count))
    leaf = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Contents 3 0 R/Resources<</Font<</F1 4 0 R>>%s>>>>" % more
    return {
        1: b"<</Type/Catalog/Pages 2 0 R/Outlines 5 0 R/PageLabels 6 0 R>>",
        2: b"<</Type/Pages/Kids[%s]/Count %d>>" % (kids, count),
        3: content or stream(SHOWN),
        4: FONT,
        **{number + 10: leaf for number in range(count)},
        **extra,
    }


def pdf_files() -> Files:
    cmap = b"begincmap 1 beginbfrange <0000> <FFFFFFFF> <0000> endbfrange 1 beginbfrange <00> <FF> <D800> endbfrange"
    loop = b"<</Type/XObject/Subtype/Form/BBox[0 0 9 9]/Resources<</XObject<</X 7 0 R>>>>/Length 5>>stream\n/X Do\nendstream"
    entry = b"<</Title(<script>alert\\(1\\)</script>)/Next 5 0 R/First 5 0 R/Last 5 0 R/Parent 5 0 R/Dest[10 0 R/Fit]>>"
    below = {
        n: b"<</Title(%d)/First %d 0 R/Last %d 0 R/Dest[10 0 R/Fit]>>" % (n, n + 1, n + 1) for n in range(20, 4_000)
    }
    down = {n: b"<</Type/Pages/Parent %d 0 R/Kids[%d 0 R]/Count 1>>" % (n - 1, n + 1) for n in range(20, 5_020)}
    objects: dict[str, dict[int, bytes]] = {  # in place of those of a good file of two pages
        "pages in a circle": {2: b"<</Type/Pages/Kids[2 0 R 10 0 R]/Count 2>>"},
        "a page is its own parent": {10: b"<</Type/Page/Parent 10 0 R/Contents 3 0 R>>"},
        "pages far down": {2: b"<</Type/Pages/Kids[20 0 R]/Count 1>>", **down, 5_020: pages(1)[10]},
        "a giant number of pages": {2: b"<</Type/Pages/Kids[10 0 R]/Count 2147483647>>"},
        "a negative number of pages": {2: b"<</Type/Pages/Kids[10 0 R]/Count -5>>"},
        "no pages": {2: b"<</Type/Pages/Kids[]/Count 0>>"},
        "contents in a circle": {3: b"[3 0 R 3 0 R]"},
        "a reference to itself": {3: b"3 0 R"},
        "a giant length": {3: stream(SHOWN, length=2**62)},
        "a negative length": {3: stream(SHOWN, length=-5)},
        "a number of 100,000 digits": {2: b"<</Type/Pages/Kids[10 0 R]/Count " + b"9" * 100_000 + b">>"},
        "nested arrays": {3: b"[" * 20_000 + b"]" * 20_000},
        "nested dictionaries": {3: b"<</A" * 20_000 + b">>" * 20_000},
        "nested saved states": {3: stream(b"q " * 300_000 + SHOWN)},
        "a string without end": {3: stream(b"BT /F1 9 Tf (" + b"(" * 300_000)},
        "an array without end": {3: stream(b"BT /F1 9 Tf [" + b"(a) 1 " * 100_000)},
        "an image without end": {3: stream(b"BI /W 9 /H 9 ID " + b"EI" * 50 + b"x" * 300_000)},
        "letters beyond all letters": {4: FONT[:-2] + b"/ToUnicode 7 0 R>>", 7: stream(cmap)},
        "a giant font": {4: FONT[:-2] + b"/FirstChar 0/LastChar 999999999/Widths[" + b"1 " * 9_999 + b"]>>"},
        "bookmarks in a circle": {5: entry},
        "bookmarks one below the other": {5: b"<</First 20 0 R/Last 20 0 R>>", **below, 4_000: b"<</Title(x)/Dest[10 0 R/Fit]>>"},
        "labels with giant numbers": {6: b"<</Nums[0<</S/r/St 999999999999>>1<</S/A/St 99999999>>]>>"},
        "labels in a circle": {6: b"<</Kids[6 0 R]>>"},
        "labels of markup": {6: b"<</Nums[0<</P(<script>\\012\\033[2J)/S/D>>]>>"},
        "a script": {1: b"<</Type/Catalog/Pages 2 0 R/OpenAction<</S/JavaScript/JS(app.alert\\(1\\))>>>>"},
        "control and bidi characters": {3: stream(b"BT /F1 9 Tf (" + bytes(range(1, 32)).replace(b"\\", b"") + b"abc) Tj ET")},
    }  # fmt: skip
    contents: dict[str, Callable[[], bytes]] = {
        "a bomb": lambda: packed(bytes(300_000_000)),
        "a bomb in a bomb": lambda: packed(zlib.compress(bytes(100_000_000)), b"/Filter[/FlateDecode/FlateDecode]"),
        "a bomb of text": lambda: packed(SHOWN * 60_000),
        "a hundred filters": lambda: packed(SHOWN, b"/Filter[" + b"/FlateDecode" * 100 + b"]"),
        "run lengths": lambda: stream(b"\x81a" * 500_000, b"/Filter/RunLengthDecode"),
        "LZW": lambda: stream(b"\x80\x0b\x60\x50" * 100_000, b"/Filter/LZWDecode"),
        "a predictor of many columns": lambda: packed(SHOWN * 99, b"/Filter/FlateDecode/DecodeParms<</Predictor 12/Columns 2000000000>>"),
    }  # fmt: skip
    titles = {
        "markup": b"<</Title(<script>\\012<|im_start|>)>>",
        "half characters": b"<</Title<FEFFD800D800>>>",
        "a circle": b"8 0 R",
    }
    encrypted = b"/Encrypt<</Filter/Standard/V %d/R %d/O(x)/U(x)/P -1>>/ID[(a)(b)]"
    return {
        "10,000 pages": lambda: pdf(pages(10_000)),
        **{what: lambda made=made: pdf(pages(1, made())) for what, made in contents.items()},
        **{what: lambda made=made: pdf(pages(2) | made) for what, made in objects.items()},
        **{f"a title of {what}": lambda title=title: pdf({**pages(), 8: title}, b"/Info 8 0 R") for what, title in titles.items()},
        "a form that shows itself": lambda: pdf(pages(1, stream(b"/X Do " + SHOWN), b"/XObject<</X 7 0 R>>", {7: loop})),
        "tables in a circle": lambda: pdf(pages(1), b"/Prev 9"),
        "encrypted by nobody": lambda: pdf(pages(1), encrypted % (9, 9)),
        "encrypted with giant keys": lambda: pdf(pages(1), encrypted.replace(b"/O", b"/Length 99999999/O") % (2, 3)),
        "a table that lies": lambda: pdf(pages(1)).replace(b"xref\n0 ", b"xref\n999999999 "),
        "no table": lambda: pdf(pages(1)).partition(b"xref")[0] + b"startxref\n99999999999\n%%EOF",
        "nothing but a head": lambda: b"%PDF-1.7\n%%EOF",
        "a million heads": lambda: b"%PDF-1.7\n" * 100_000 + b"%%EOF",
        "a million objects": lambda: b"%PDF-1.7\n" + b"1 0 obj<<>>endobj\n" * 200_000 + b"startxref\n0\n%%EOF",
    }  # type: ignore[misc]  # fmt: skip


# -------------------- what files of markup have in common


def archive(files: Mapping[str, str | bytes], first: str = "") -> bytes:
    """A ZIP file. A lone surrogate in a text stands for a byte that is no UTF-8."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as target:
        if first:
            target.writestr(zipfile.ZipInfo("mimetype"), first)
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            target.writestr(info, content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape"))
    return out.getvalue()


def nested(begin: str, end: str, count: int, inside: str = "a") -> str:
    return begin * count + inside + end * count


def common(of: Callable[[str, str], bytes], some: str) -> Files:
    """Files of a format: `of` makes one of a body with something before it, `some` is a body with words at "{}"."""
    words = some.replace("{}", WORDS)
    return {
        "a laugh": lambda: of(some.replace("{}", "&c;"), LAUGHS),
        "an entity from outside": lambda: of(some.replace("{}", "&a;"), OUTSIDE),
        "markup everywhere": lambda: of(some.replace("{}", MARKED) * 3, ""),
        "bidi characters": lambda: of(some.replace("{}", f"\u202e\u2066{WORDS}") * 20, ""),
        "marks without end": lambda: of(some.replace("{}", "e" + "\u0301\u0327" * 100_000) + words, ""),
        "half characters": lambda: of(some.replace("{}", "&#xD800;&#x110000;&#0;&#99999999999999;" * 2_000) + words, ""),
        "comments without end": lambda: of(words + "<!-- -->" * 200_000, ""),
        "100,000 paragraphs": lambda: of(words * 100_000, ""),
        "an attribute of 5 MB": lambda: of(words.replace(">", f' x="{"a" * 5_000_000}">', 1), ""),
        "100,000 attributes": lambda: of(words.replace(">", " " + " ".join(f'a{n}=""' for n in range(100_000)) + ">", 1), ""),
        "a bomb of text": lambda: of(some.replace("{}", "a " * 25_000_000), ""),
        "giant sizes": lambda: lying(of(words, "")),
        **{f"in {codec[:15]}": lambda codec=codec: of(f"{words}<!-- \udce9\\u0041 -->", f'<?xml version="1.0" encoding="{codec}"?>') for codec in CODECS},
    }  # type: ignore[misc]  # fmt: skip


def lying(whole: bytes) -> bytes:
    """An archive whose directory says that every entry is of 4 GB."""
    out = bytearray(whole)
    at = out.find(b"PK\x01\x02")
    while at >= 0:
        out[at + 24 : at + 28] = b"\xfe\xff\xff\xff"
        at = out.find(b"PK\x01\x02", at + 4)
    return bytes(out)


# -------------------- EPUB


def page(body: str, head: str = "", start: str = "") -> str:
    return f'{start}<html xmlns="http://www.w3.org/1999/xhtml"><head><title>T</title>{head}</head><body>{body}</body></html>'


CONTAINER = (
    '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    '<rootfile full-path="OPS/b.opf" media-type="application/oebps-package+xml"/></rootfiles></container>'
)
NAV = '<item id="n" href="nav.xhtml" properties="nav" media-type="application/xhtml+xml"/>'


def package(sections: Sequence[str], start: str = "", title: str = "T", more: str = "", repeat: int = 1) -> str:
    """A package document whose reading order is `sections`; `more`: further items."""
    kind = "application/xhtml+xml"
    items = "".join(f'<item id="i{n}" href="{name}" media-type="{kind}"/>' for n, name in enumerate(sections))
    order = "".join(f'<itemref idref="i{n}"/>' for n in range(len(sections))) * repeat
    about = f'<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{title}</dc:title></metadata>'
    return f'{start}<package xmlns="http://www.idpf.org/2007/opf">{about}<manifest>{items}{more}</manifest><spine>{order}</spine></package>'


def epub(files: Mapping[str, str | bytes], **options: object) -> bytes:
    """An EPUB whose sections are the files that are XHTML."""
    sections = [name.removeprefix("OPS/") for name in files if name.endswith(".xhtml")]
    whole = {"META-INF/container.xml": CONTAINER, "OPS/b.opf": package(sections, **options), **files}  # type: ignore[arg-type]
    return archive(whole, "application/epub+zip")


def epub_files() -> Files:
    text = f"<p>{WORDS}</p>"
    a = {"OPS/a.xhtml": page(text)}
    links = '<li><a href="a.xhtml">Chapter 1</a></li>' * 60_000
    deep = {**a, "OPS/nav.xhtml": page("<nav><ol>" + '<li><a href="a.xhtml">a</a><ol>' * 9_000)}
    shop = {"META-INF/encryption.xml": '<e><CipherReference URI="OPS/a.xhtml"/></e>'}
    endless = {
        "elements one in the other": "<div>" * 200_000, "lists one in the other": "<ul><li>" * 20_000,
        "elements that never end": "<p><b><i>" * 50_000, "comments that never end": text + "<!--" * 200_000,
        "sections that never end": text + "<![CDATA[" * 100_000, "tags that never end": text + "<a " * 200_000,
        "declarations that never end": text + "<!a" * 100_000,
    }  # fmt: skip
    many = {
        "headings, packed": "<h1>a</h1>" * 95_000,
        "marks, packed": "\ufffd " * 240_000,
        "words, packed": "ж " * 320_000,
    }
    return {
        **common(lambda body, start: epub({"OPS/a.xhtml": page(body, start=start)}), "<p>{}</p>"),
        **{what: lambda body=body: epub({"OPS/a.xhtml": page(body + text)}) for what, body in endless.items()},
        **{f"many {what}": lambda body=body: epub({f"OPS/{n}.xhtml": page(body) for n in range(20)}) for what, body in many.items()},
        "many small bombs": lambda: epub({f"OPS/{n}.xhtml": "<p>" + "a " * 450_000 for n in range(90)}),
        "10,000 sections": lambda: epub(a, repeat=10_000),
        "20,000 sections": lambda: epub(a, repeat=20_000),
        "12,000 entries": lambda: epub({**a, **{f"x{n}": "" for n in range(12_000)}}),
        "a laugh in the package": lambda: epub(a, start=LAUGHS),
        "a package from outside": lambda: epub(a, start=OUTSIDE),
        "a title of markup": lambda: epub(a, title="&lt;script&gt;"),
        "names that climb": lambda: epub({"OPS/../../../../etc/a.xhtml": page(text), "/etc/passwd": "x"}),
        "names of markup": lambda: epub({"OPS/<script>.xhtml": page(text)}),
        "a package of itself": lambda: archive({"META-INF/container.xml": CONTAINER.replace("OPS/b.opf", "META-INF/container.xml")}, "application/epub+zip"),
        "no container": lambda: archive({"a": "b"}, "application/epub+zip"),
        "an empty container": lambda: archive({"META-INF/container.xml": ""}, "application/epub+zip"),
        "a shop's": lambda: epub(a | shop),
        "a list of contents without end": lambda: epub(deep, more=NAV),
        "a list of contents of 60,000": lambda: epub({**a, "OPS/nav.xhtml": page(f"<nav><ol>{links}</ol></nav>")}, more=NAV),
        "nested packages": lambda: epub(a, start="<a>" * 100_000),
        "a comment of 64 KB": lambda: epub(a)[:-2] + struct.pack("<H", 65_535) + b"PK\x05\x06" * 16_383 + b"PK\x05",
        "a twin of each entry": lambda: epub(a) + epub({"OPS/a.xhtml": page("<p>another</p>")}),
        "entries that overlap": lambda: epub(a).replace(b"OPS/a.xhtml", b"OPS/b.opf\0\0"),
    }  # type: ignore[misc]  # fmt: skip


# -------------------- Word, OpenDocument, PowerPoint


def docx(body: str, files: Mapping[str, str | bytes] = {}, start: str = "") -> bytes:
    relation = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/"
    links = "".join(f'<Relationship Id="r{n}" Type="{relation}{n}" Target="{n}.xml"/>' for n in ("styles", "numbering", "footnotes"))  # fmt: skip
    whole = {
        "[Content_Types].xml": "<Types/>",
        "_rels/.rels": f'<Relationships><Relationship Id="a" Type="{relation}officeDocument" Target="word/document.xml"/></Relationships>',
        "word/_rels/document.xml.rels": f"<Relationships>{links}</Relationships>",
        "word/document.xml": f'{start}<w:document xmlns:w="{W}"><w:body>{body}</w:body></w:document>',
    }
    return archive({**whole, **files})


def paragraphs(count: int, text: str = WORDS, properties: str = "") -> str:
    return f"<w:p><w:pPr>{properties}</w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>" * count


def docx_files() -> Files:
    some = paragraphs(3)
    styled = '<w:pStyle w:val="L"/><w:numPr><w:ilvl w:val="0"/><w:numId w:val="1"/></w:numPr>'
    loops = (
        '<w:style w:styleId="L"><w:basedOn w:val="M"/></w:style><w:style w:styleId="M"><w:basedOn w:val="L"/></w:style>'
    )
    many = "".join(f'<w:style w:styleId="L{n}"><w:basedOn w:val="L{n + 1}"/></w:style>' for n in range(100_000))
    call = '<w:p><w:r><w:footnoteReference w:id="{}"/></w:r></w:p>'
    own = f'<w:footnotes xmlns:w="{W}"><w:footnote w:id="1">{call.format(1)}</w:footnote></w:footnotes>'
    elsewhere = '<Relationship Type="x/styles" Target="http://example.com/a" TargetMode="External"/><Relationship Type="x/numbering" Target="../../../../etc/passwd"/>'
    circle = '<Relationships><Relationship Type="x/officeDocument" Target="_rels/.rels"/></Relationships>'

    def with_styles(content: str) -> bytes:
        return docx(paragraphs(9, WORDS, styled), {"word/styles.xml": f'<w:styles xmlns:w="{W}">{content}</w:styles>'})

    def with_numbers(count: int, level: int, start: object, form: str, pattern: str, at: str = "0") -> bytes:
        rule = f'<w:lvl w:ilvl="{level}"><w:start w:val="{start}"/><w:numFmt w:val="{form}"/><w:lvlText w:val="{pattern}"/></w:lvl>'
        kind = f'<w:abstractNum w:abstractNumId="1">{rule}</w:abstractNum><w:num w:numId="1"><w:abstractNumId w:val="1"/></w:num>'
        return docx(
            paragraphs(count, "a", styled.replace('"0"', f'"{at}"')),
            {"word/numbering.xml": f'<w:numbering xmlns:w="{W}">{kind}</w:numbering>'},
        )

    return {
        **common(lambda body, start: docx(body, start=start), paragraphs(1, "{}")),
        "a bomb": lambda: docx("", {"word/document.xml": bytes(300_000_000)}),
        "elements one in the other": lambda: docx("<w:sdt>" * 200_000 + some),
        "tables one in the other": lambda: docx(nested("<w:tbl><w:tr><w:tc>", "</w:tc></w:tr></w:tbl>", 5_000, some)),
        "boxes one in the other": lambda: docx(nested("<w:p><w:r><w:txbxContent>", "</w:txbxContent></w:r></w:p>", 2_000, some)),
        "paragraphs one in the other": lambda: docx(nested("<w:p>", "</w:p>", 3_000, "<w:r><w:t>a</w:t></w:r>")),
        "styles in a circle": lambda: with_styles(loops),
        "100,000 styles": lambda: with_styles(many),
        "giant numbers": lambda: with_numbers(9, 0, "9" * 5_000, "decimal", "%1"),
        "Roman numbers without end": lambda: with_numbers(9_000, 0, 3_990, "upperRoman", "%1." * 9),
        "negative levels": lambda: with_numbers(9, -1, -1, "x", "%0", "-5"),
        "a marker of 100,000 characters": lambda: with_numbers(9, 0, 1, "bullet", "x" * 100_000),
        "symbols beyond all letters": lambda: docx('<w:p><w:r><w:sym w:font="Symbol" w:char="FFFFFFFFFF"/><w:sym w:char="D800"/><w:sym w:char="-1"/></w:r></w:p>' + some),
        "100,000 notes": lambda: docx(some + "".join(map(call.format, range(50_000)))),
        "notes that call themselves": lambda: docx(call.format(1) + some, {"word/footnotes.xml": own}),
        "fields that never end": lambda: docx('<w:p><w:r><w:fldChar w:fldCharType="begin"/></w:r></w:p>' * 50_000 + some),
        "parts from elsewhere": lambda: docx(some, {"word/_rels/document.xml.rels": f"<Relationships>{elsewhere}</Relationships>"}),
        "relations in a circle": lambda: docx(some, {"_rels/.rels": circle}),
        "no document": lambda: archive({"[Content_Types].xml": "<Types/>", "word/x": ""}),
        "a name of 1 MB": lambda: docx(f"<w:{'a' * 1_000_000}/>" + some),
    }  # fmt: skip


OPEN = "urn:oasis:names:tc:opendocument:xmlns:"
ODT_WORDS = f"<text:p>{WORDS}</text:p>"
ODT_TABLE = (
    "<table:table><table:table-row><table:table-cell><text:p>1</text:p></table:table-cell>"
    "<table:table-cell><text:p>2</text:p></table:table-cell></table:table-row></table:table>"
)


def odt(body: str, files: Mapping[str, str | bytes] = {}, start: str = "", styles: str = "") -> bytes:
    spaces = " ".join(
        f'xmlns:{name}="{OPEN}{name}:1.0"' for name in ("office", "text", "table", "style", "draw", "xlink")
    )
    content = (
        f"{start}<office:document-content {spaces}><office:automatic-styles>{styles}</office:automatic-styles>"
        f"<office:body><office:text>{body}</office:text></office:body></office:document-content>"
    )
    return archive({"content.xml": content, **files}, "application/vnd.oasis.opendocument.text")


def odt_files() -> Files:
    some, nine = ODT_WORDS * 3, "9" * 5_000
    loops = '<style:style style:name="A" style:parent-style-name="B"/><style:style style:name="B" style:parent-style-name="A"/>'
    locked = '<m:manifest xmlns:m="x"><m:file-entry m:full-path="content.xml"><m:encryption-data/></m:file-entry></m:manifest>'
    lists = "".join(
        f'<text:list xml:id="{one}" text:continue-list="{other}"><text:list-item/></text:list>'
        for one, other in ("ab", "ba")
    )
    giant = f'<text:list-item text:start-value="{nine}">{some}</text:list-item>'
    heads = f'<text:h text:outline-level="{nine}">a</text:h><text:h text:outline-level="-5">b</text:h><text:p><text:s text:c="999999999"/></text:p>'
    cells = "<table:table><table:table-row><table:table-cell>", "</table:table-cell></table:table-row></table:table>"
    return {
        **common(lambda body, start: odt(body, start=start), "<text:p>{}</text:p>"),
        "a bomb": lambda: odt("", {"content.xml": bytes(300_000_000)}),
        "a bomb of styles": lambda: odt(some, {"styles.xml": bytes(60_000_000)}),
        "a laugh in the styles": lambda: odt(some, {"styles.xml": LAUGHS + "<a>&c;</a>"}),
        "elements one in the other": lambda: odt("<text:section>" * 100_000 + some),
        "lists one in the other": lambda: odt(nested("<text:list><text:list-item>", "</text:list-item></text:list>", 5_000, some)),
        "tables one in the other": lambda: odt(nested(*cells, 3_000, some)),
        "notes one in the other": lambda: odt(nested("<text:p><text:note>", "</text:note></text:p>", 2_000) + some),
        "boxes one in the other": lambda: odt(nested("<text:p><draw:text-box>", "</draw:text-box></text:p>", 2_000) + some),
        "paragraphs one in the other": lambda: odt(nested("<text:p>", "</text:p>", 3_000)),
        "styles in a circle": lambda: odt('<text:p text:style-name="A">a</text:p>' + some, styles=loops),
        "giant numbers": lambda: odt(f"<text:list>{giant}</text:list>{heads}"),
        "a cell 999,999,999 times": lambda: odt(ODT_TABLE.replace("-cell>", '-cell table:number-columns-repeated="999999999">', 1) + some),
        "lists that go on in a circle": lambda: odt(lists + some),
        "packed levels that are read": lambda: odt("".join(f'<text:h text:outline-level="{1 + 49 * n}">Head {n}</text:h><text:p>w</text:p>' for n in range(15_000))),
        "with a password": lambda: odt(some, {"META-INF/manifest.xml": locked}),
        "another root": lambda: odt("", {"content.xml": "<html/>"}),
        "no content": lambda: archive({"a": ""}, "application/vnd.oasis.opendocument.text"),
        "a title of 1 MB": lambda: odt(some, {"meta.xml": f"<m><title>{'a' * 1_000_000}</title></m>"}),
    }  # fmt: skip


A, P, R = (
    "http://schemas.openxmlformats.org/drawingml/2006/main",
    "http://schemas.openxmlformats.org/presentationml/2006/main",
    "http://schemas.openxmlformats.org/officeDocument/2006/relationships",
)


def shape(text: str, kind: str = "body") -> str:
    place = f'<p:nvSpPr><p:nvPr><p:ph type="{kind}"/></p:nvPr></p:nvSpPr>' if kind else ""
    return f"<p:sp>{place}<p:txBody><a:p><a:r><a:t>{text}</a:t></a:r></a:p></p:txBody></p:sp>"


def slide(title: str, text: str, more: str = "") -> str:
    shapes = f"{shape(title, 'title')}{shape(text)}{more}"
    return f'<p:sld xmlns:a="{A}" xmlns:p="{P}"><p:cSld><p:spTree>{shapes}</p:spTree></p:cSld></p:sld>'


def pptx(slides: Sequence[str], files: Mapping[str, str | bytes] = {}, order: str = "", start: str = "") -> bytes:
    numbers = range(1, len(slides) + 1)
    links = "".join(f'<Relationship Id="r{n}" Type="{R}/slide" Target="slides/slide{n}.xml"/>' for n in numbers)
    listed = order or "".join(f'<p:sldId id="{n + 255}" r:id="r{n}"/>' for n in numbers)
    whole: dict[str, str | bytes] = {
        "[Content_Types].xml": "<Types/>",
        "_rels/.rels": f'<Relationships><Relationship Id="a" Type="{R}/officeDocument" Target="ppt/presentation.xml"/></Relationships>',
        "ppt/_rels/presentation.xml.rels": f"<Relationships>{links}</Relationships>",
        "ppt/presentation.xml": f'{start}<p:presentation xmlns:p="{P}" xmlns:r="{R}"><p:sldIdLst>{listed}</p:sldIdLst></p:presentation>',
        **{f"ppt/slides/slide{n}.xml": content for n, content in zip(numbers, slides, strict=True)},
    }
    return archive({**whole, **files})


def pptx_files() -> Files:
    good_one = slide("Title", WORDS)
    rels, link = (
        "ppt/slides/_rels/slide1.xml.rels",
        '<Relationships><Relationship Id="n" Type="x/{}" Target="{}"/></Relationships>',
    )
    notes = {
        rels: link.format("notesSlide", "../notes.xml"), "ppt/_rels/notes.xml.rels": link.format("notesSlide", "notes.xml"),
        "ppt/notes.xml": f'<p:notes xmlns:a="{A}" xmlns:p="{P}">{shape(WORDS)}</p:notes>',
    }  # fmt: skip
    numbered = '<a:p><a:pPr lvl="999999"><a:buAutoNum type="romanUcPeriod" startAt="999999999"/></a:pPr>'
    groups = {
        "groups": "<p:grpSp>" * 50_000,
        "shapes": nested("<p:sp>", "</p:sp>", 3_000, shape(WORDS)),
        "tables": f"<p:graphicFrame>{nested('<a:tbl><a:tr><a:tc>', '</a:tc></a:tr></a:tbl>', 3_000, '')}</p:graphicFrame>",
    }
    parts = {
        "a slide is its own notes": ("notesSlide", "slide1.xml"),
        "a diagram that is a slide": ("diagramData", "slide1.xml"),
        "parts from elsewhere": ("notesSlide", "../../../../etc/passwd"),
    }
    return {
        **common(lambda body, start: pptx([start + slide(body, body)]), "{}"),
        **{f"{what} one in the other": lambda more=more: pptx([slide("a", WORDS, more)]) for what, more in groups.items()},
        **{what: lambda to=to: pptx([good_one], {rels: link.format(*to)}) for what, to in parts.items()},
        "a bomb": lambda: pptx([good_one], {"ppt/slides/slide1.xml": bytes(100_000_000)}),
        "many small bombs": lambda: pptx([slide("a", "a " * 450_000) for _ in range(90)]),
        "a slide 10,000 times": lambda: pptx([good_one], order='<p:sldId r:id="r1"/>' * 10_000),
        "a slide 20,000 times": lambda: pptx([good_one], order='<p:sldId r:id="r1"/>' * 20_000),
        "slides that are not there": lambda: pptx([good_one], order='<p:sldId r:id="r1"/>' + '<p:sldId r:id="x"/><p:sldId/>' * 900),
        "no slides": lambda: pptx([]),
        "a laugh in the list": lambda: pptx([good_one], start=LAUGHS),
        "levels beyond all levels": lambda: pptx([slide("a", WORDS).replace("<a:p>", numbered)]),
        "notes of notes": lambda: pptx([good_one], notes),
        "half of it": lambda: pptx([good_one, good_one[: len(good_one) // 2]]),
        "no presentation": lambda: archive({"[Content_Types].xml": "<Types/>", "ppt/a": ""}),
        "100,000 lines of a shape": lambda: pptx([slide("a", WORDS, shape("</a:t></a:r></a:p><a:p><a:r><a:t>a" * 100_000))]),
    }  # type: ignore[misc]  # fmt: skip


# -------------------- FB2, RTF, tables, ZIP files of documents


def fb2(body: str, title: str = "T", start: str = "", more: str = "") -> bytes:
    about = f"<description><title-info><book-title>{title}</book-title></title-info></description>"
    space = 'xmlns="http://www.gribuser.ru/xml/fictionbook/2.0" xmlns:l="http://www.w3.org/1999/xlink"'
    return f"{start}<FictionBook {space}>{about}<body>{body}</body>{more}</FictionBook>".encode(
        "utf-8", "surrogateescape"
    )


def fb2_files() -> Files:
    text, note = f"<p>{WORDS}</p>", '<p><a type="note" l:href="#n1">1</a></p>'
    notes = '<body name="notes">{}</body>'
    return {
        **common(lambda body, start: fb2(body, start=start), "<p>{}</p>"),
        "sections one in the other": lambda: fb2(nested("<section>", "</section>", 50_000, text)),
        "sections that never end": lambda: fb2("<section>" * 50_000 + text),
        "titles one in the other": lambda: fb2(nested("<title>", "</title>", 5_000, text)),
        "tables one in the other": lambda: fb2(nested("<table><tr><td>", "</td></tr></table>", 5_000, text)),
        "100,000 calls": lambda: fb2(note * 100_000 + text),
        "a note that calls itself": lambda: fb2(note + text, more=notes.format(f'<section id="n1">{note}</section>')),
        "notes in notes": lambda: fb2(note, more=notes.format(nested('<section id="n1">', "</section>", 900, text))),
        "a picture of 60 MB": lambda: fb2(text, more=f"<binary>{'A' * 60_000_000}</binary>"),
        "70 MB": lambda: fb2(f"<p>{'a' * 70_000_000}</p>"),
        "a title of markup": lambda: fb2(f"<section><title>{MARKED}</title>{text}</section>", chr(0x202E) + MARKED),
        "nothing but a head": lambda: b"<FictionBook>",
        "another root inside": lambda: b"<FictionBook/><FictionBook/>",
        "a prefix that nobody declared": lambda: fb2('<p x:href="a">' + WORDS + "</p>"),
    }  # fmt: skip


RTF_NOTE = "{\\*\\footnote \\pard A note.\\par}"
RTF_ROW = "\\trowd\\pard\\intbl 1\\cell 2\\cell\\row"


def rtf(body: str, head: str = "") -> bytes:
    table = "{\\fonttbl{\\f0\\fcharset204 A;}{\\f1\\fcharset128 B;}}{\\stylesheet{\\s1\\outlinelevel0 heading 1;}}"
    return ("{\\rtf1\\ansi\\ansicpg1252" + table + head + body + "}").encode("latin-1", "replace")


def rtf_files() -> Files:
    odd = "\\u-1 \\u55357 \\u-10179 \\u99999999 ? \\u-99999999 \\uc999999999 \\u65 "
    return {
        "groups one in the other": lambda: rtf("{" * 200_000 + WORDS + "}" * 200_000),
        "groups that never end": lambda: rtf("{" * 200_000 + WORDS),
        "groups that never began": lambda: rtf("}" * 200_000 + WORDS),
        "notes one in the other": lambda: rtf("{\\footnote a" * 2_000 + "}" * 2_000 + WORDS),
        "100,000 notes": lambda: rtf(RTF_NOTE * 100_000 + WORDS),
        "rows one after the other": lambda: rtf(RTF_ROW * 100_000 + WORDS),
        "cells without end": lambda: rtf("\\intbl" + "\\cell" * 300_000 + WORDS),
        "a picture without end": lambda: rtf("{\\pict" + "ab" * 3_000_000),
        "bytes beyond the end": lambda: rtf("{\\pict\\bin9999999999 a}" + WORDS),
        "bytes before the beginning": lambda: rtf("\\bin-99999 a" * 1_000 + WORDS),
        "words without end": lambda: rtf("\\" + "a" * 3_000_000),
        "numbers without end": lambda: rtf("\\u" + "9" * 3_000_000 + " " + WORDS),
        "letters beyond all letters": lambda: rtf(odd * 2_000 + WORDS),
        "a title of half characters": lambda: rtf(WORDS, "{\\info{\\title \\u-10179 ? <script>\\u10 ?}}"),
        "fonts beyond all fonts": lambda: rtf(
            "\\f99999999\\'e9\\f1\\'81\\f0\\'ff" * 9_000 + WORDS, "{\\fonttbl{\\f-1\\fcharset-1 ;}}"
        ),
        "code pages beyond all": lambda: rtf("\\ansicpg99999\\ansicpg-1\\ansicpg65001\\'ff\\'fe" * 9_000 + WORDS),
        "styles in a circle": lambda: rtf(
            "\\pard\\s7 a\\par" * 900 + WORDS, "{\\stylesheet{\\s7\\sbasedon8 A;}{\\s8\\sbasedon7 B;}}"
        ),
        "markers without end": lambda: rtf("{\\listtext " + "x" * 1_000_000 + "}" + WORDS),
        "levels beyond all levels": lambda: rtf("\\pard\\outlinelevel99999\\ilvl-9 a\\par" * 900 + WORDS),
        "control characters": lambda: rtf("".join(map(chr, range(1, 32))).replace("\\", "") * 900 + WORDS),
        "bidi characters": lambda: rtf("\\u8238 ?\\u8294 ?\\u8207 ?" * 900 + WORDS),
        "markup everywhere": lambda: rtf((MARKUP.replace("{", "").replace("}", "") + "\\par ") * 90),
        "an object": lambda: rtf("{\\object{\\*\\objdata 0105}{\\result " + WORDS + "}}"),
        "nothing but a head": lambda: b"{\\rtf",
        "a backslash at the end": lambda: rtf(WORDS)[:-1] + b"\\",
        "breaks without end": lambda: rtf("\\line\\page\\sect\\par" * 50_000 + WORDS),
    }


def table_files() -> Files:
    atoms = (
        ",", ";", '"', '""', '",', '"\n', "a,b\n", "\t", "|", ",\n", "a" * 99 + "\n", "=1+1,", "\r", "\0", "\u202e,",
        "e\u0301",
    )  # fmt: skip
    found = {f"{atom[:8]!r} 200,000 times": repeated("name,tons\n", atom, 200_000) for atom in atoms}
    found["a cell of 5 MB"] = lambda: b'name,tons\n"' + b"a" * 5_000_000 + b'",1\n'
    found["100,000 columns"] = lambda: (b"a," * 100_000 + b"\n") * 3
    found["70 MB"] = lambda: b"a,b\n" * 17_500_000
    found["a separator of its own"] = lambda: b"sep=\0\na\0b\n" + b"sep=\n" * 9
    found["a quotation mark for separator"] = lambda: b'sep="\na"b\n' * 9
    found["markup everywhere"] = lambda: (f'name,"{MARKUP}"\n' * 90).encode()
    found["half characters"] = lambda: b"name,tons\n\xed\xa0\x80,1\n" * 900
    return found


def zip_files() -> Files:
    deep = archive({"a.txt": WORDS})
    climbing = dict.fromkeys(("../../../../etc/passwd", "/etc/shadow", "C:\\a\\b.txt", "..", "a/../.."), WORDS)
    return {
        "a bomb": lambda: archive({"a.txt": bytes(100_000_000)}),
        "many bombs": lambda: archive({f"{n}.txt": b"a " * 30_000_000 for n in range(9)}),
        "many small bombs": lambda: archive({f"{n}.txt": b"a " * 450_000 for n in range(400)}),
        "packed form feeds": lambda: archive({f"{n}.txt": "a\f" * 490_000 for n in range(19)}),
        "packed lines": lambda: archive({f"{n}.md": "a\n" * 490_000 for n in range(19)}),
        "packed headings": lambda: archive({f"{n}.md": "# a\n\n" * 190_000 for n in range(19)}),
        "packed form feeds that are read": lambda: archive({"a.txt": "a\f" * 320_000}),
        "packed dots that are read": lambda: archive({"a.html": page("".join(f"<h2>{'.' * 290}x{n}</h2><p>w" for n in range(2_900)))}),
        "packed headings that are read": lambda: archive({f"{n}.md": f"# {n}\n" + "# a\n" * 500 for n in range(375)}),
        "ZIPs in it": lambda: archive({f"{n}.zip": deep for n in range(9)}),
        "a ZIP and a text": lambda: archive({"a.zip": deep, "b.txt": WORDS}),
        "2,000 files": lambda: archive({f"{n}.txt": WORDS for n in range(2_000)}),
        "12,000 files": lambda: archive({f"{n}.txt": "" for n in range(12_000)}),
        "names that climb": lambda: archive(climbing),
        "names of markup": lambda: archive({f"{os.fsencode(name).decode('utf-8', 'replace')}.txt": f"{WORDS} {n}" for n, name in enumerate(NAMES)}),
        "names without end": lambda: archive({"a/" * 9_000 + "b.txt": WORDS}),
        "one name twice": lambda: archive({"a.txt": WORDS}) + archive({"a.txt": MARKUP}),
        "nothing in it": lambda: archive({}),
        "nothing but folders": lambda: archive({"a/": "", "b/": ""}),
        "nothing but pictures": lambda: archive({f"{n}.png": b"\x89PNG\r\n\x1a\n" for n in range(9)}),
        "nothing but hidden files": lambda: archive({".a": WORDS, "__MACOSX/a.txt": WORDS}),
        "giant sizes": lambda: lying(deep),
        "encrypted": lambda: deep.replace(b"PK\x01\x02\x14\x03\x14\x00\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01\x00"),
        "a damaged file in it": lambda: archive({"a.pdf": b"%PDF-1.7", "b.docx": good("docx")[:900], "c.txt": WORDS}),
        "hostile files in it": lambda: archive({"a.fb2": fb2_files()["a laugh"](), "b.odt": odt_files()["a bomb"](), "c.txt": WORDS}),
    }  # fmt: skip


# -------------------- text


def repeated(start: str, atom: str, count: int) -> Make:
    return lambda: (start + atom * count).encode("utf-8", "surrogatepass")


def html_files() -> Files:
    start, text = "<!doctype html><html><body>", f"<p>{WORDS}</p>"
    atoms = (
        "<div>", "<ul><li>", "<table><tr><td>", "<p", "<a href='", "<!--", "<!-", "<!---->", "<![CDATA[", "<?", "</", "<",
        "&", "&#", "&#x110000;", "&#xD800;", "&a" * 9, "<b><i>", "<h1>", "<br>", "<pre>\n", "<script>", "<style>",
        "<svg><title>", "<select>", "<nav>", "<template>", "\0", "e\u0301\u0327", "\u202e", "<!DOCTYPE a [", "<img src=x>",
    )  # fmt: skip
    found = {f"{atom!r} 50,000 times": repeated(start + text, atom, 50_000) for atom in atoms}
    found["attributes without end"] = lambda: (start + "<p " + " ".join(f"a{n}=1" for n in range(200_000))).encode()
    found["an entity of its own"] = lambda: (LAUGHS + start + "&c;" + text).encode()
    found["markup everywhere"] = lambda: (f"<html><title>{MARKUP}</title><h1>{MARKUP}</h1>{text}" * 3).encode()
    found["17 MB"] = lambda: (start + text * 200_000).encode()
    found["comments before it"] = lambda: ("<!---->" * 600 + start + text).encode()
    for codec in CODECS:
        found[f"in {codec[:15]}"] = lambda codec=codec: f'<html><meta charset="{codec}">{text}\\u0041 +AEE-'.encode() + b"\xe9"  # type: ignore[misc]  # fmt: skip
    return found


def text_files() -> Files:
    chosen = [atom for atom in ATOMS if atom.strip() and not atom.startswith(("%PDF", "PK"))][::3]
    found = {f"{atom!r} 100,000 times": repeated(WORDS, atom, 100_000) for atom in chosen}
    found |= {
        "70 MB": lambda: b"a" * 70_000_000,
        "5,000,000 line ends": repeated("a", "\n", 5_000_000),
        "5,000,000 spaces": repeated("a", " ", 5_000_000),
        "one line of 10 MB": repeated("", WORDS, 100_000),
        "200,000 pages": repeated("", "a\f", 200_000),
        "UTF-16 cut off": lambda: ("\ufeff" + WORDS).encode("utf-16")[:-1],
        "UTF-32 that is none": lambda: b"\xff\xfe\x00\x00" + b"\xff" * 999,
        "half characters": lambda: b"\xed\xa0\x80" * 3_000 + WORDS.encode(),
        "control characters": lambda: bytes(range(1, 32)) * 90 + WORDS.encode() * 9,
        "zeros": lambda: bytes(10_000),
        "one byte": lambda: b"a",
        "nothing": lambda: b"",
        "markup everywhere": lambda: (MARKUP * 90).encode(),
    }
    return found


COMPOUND = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


def office_files() -> Files:
    names = ("EncryptedPackage", "WordDocument", "Workbook", "PowerPoint Document", "<script>")
    found = {f"holds {name}": lambda name=name: COMPOUND + bytes(99) + name.encode("utf-16-le") for name in names}  # type: ignore[misc]
    return {**found, "nothing but a head": lambda: COMPOUND, "60 MB": lambda: COMPOUND + bytes(60_000_000)}


def other_files() -> Files:
    heads = (
        b"\x89PNG\r\n\x1a\n", b"GIF89a", b"\xff\xd8\xff", b"\x7fELF", b"MZ" + bytes(60), b"%!PS", b"BZh9",
        b"\x1f\x8b\x08", b"Rar!", b"7z\xbc\xaf'\x1c", b"AT&TFORM", bytes(60) + b"BOOKMOBI", b"RIFF1234WEBP", b"PK\x05\x06",
        b"PK\x03\x04", b"PK\x03\x04" + bytes(26) + b"xl/", b"PK\x03\x04" * 1_000, b"PK\x03\x04" + b"mimetype" * 500,
    )  # fmt: skip
    return {f"begins with {head[:12]!r}": lambda head=head: head + WORDS.encode() * 50 for head in heads}  # type: ignore[misc]


MADE: Mapping[str, Callable[[], Files]] = {
    "pdf": pdf_files,
    "epub": epub_files,
    "docx": docx_files,
    "html": html_files,
    "markdown": text_files,
    "text": text_files,
    "odt": odt_files,
    "rtf": rtf_files,
    "pptx": pptx_files,
    "fb2": fb2_files,
    "csv": table_files,
    "zip": zip_files,
    "old office": office_files,
    "other": other_files,
}
