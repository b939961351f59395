"""Text and Markdown: finds the encoding, and cuts a text that has no pages of its own."""

import codecs
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate, takewhile
from pathlib import Path
from typing import NamedTuple

from app.documents.chapters import make_chapters, markdown_headings, text_headings
from app.documents.document import Document, Extracting, make_pages, stem_of
from app.documents.errors import DocumentTooLarge, EmptyDocument, UnsupportedFormat
from app.documents.quality import garbled
from app.documents.stretches import by_stretches

MAX_BYTES = 64_000_000  # a hundred times 128K tokens
CHARS_PER_PAGE = 1_800  # a printed page
MOST_SHORT_PAGES, SHORT_PAGE = 100, 20  # more pages are no pages if their mean is fewer characters than this
TITLE_WITHIN, MAX_TITLE = 10_000, 200  # characters
MARKDOWN_SUFFIXES = {".md", ".markdown", ".mdown", ".mkd"}
TEXT_CONTROLS = set(b"\t\n\v\f\r\x1a\x1b\b")  # control bytes that real text files contain
NO_CONTROLS = {code: None for code in (*range(32), 127) if chr(code) not in "\t\n\f"}
BOMS = (  # UTF-32 first: its little-endian mark begins with UTF-16's
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)

USUAL = "cp1252"
OLDER = {  # by Python's names
    USUAL: "Windows-1252", "cp1250": "Windows-1250", "cp1254": "Windows-1254", "cp1251": "Windows-1251",
    "koi8_r": "KOI8-R", "cp1253": "Windows-1253", "cp1255": "Windows-1255", "cp1256": "Windows-1256",
    "gb18030": "GB 18030", "big5": "Big5", "cp932": "Shift JIS", "euc_jp": "EUC-JP", "cp949": "EUC-KR",
}  # fmt: skip
LATIN = frozenset(["cp1250", "cp1254"])  # differ from the usual one in few letters
NOT_ASCII = re.compile(rb"[\x80-\xff]")
SAMPLE_BYTES, LEAST_LATIN, LEAST_TOLD = 1 << 16, 500, 12  # bytes; the last: that are not ASCII


class Decoded(NamedTuple):
    """Decoded text, with a warning for its reader, if any."""

    text: str
    warning: str | None = None


def extract_plain(file: Path, name: str) -> Iterator[Extracting | Document]:
    """Read a text or Markdown file; see `readers.extract_document`."""
    yield Extracting(num_done=0, num_pages=None)
    with file.open("rb") as stream:
        encoded = stream.read(MAX_BYTES + 1)
    if len(encoded) > MAX_BYTES:
        raise DocumentTooLarge(name, f"more than {MAX_BYTES // 1_000_000} MB of text")
    decoded = decode(encoded)
    if decoded is None:
        raise UnsupportedFormat(name, "binary data and not text")
    text, starts = paginate(decoded.text)
    if not text.strip():
        raise EmptyDocument(f"{name} holds nothing but white space.", hint="Choose a file with text in it.")
    markdown = file.suffix.lower() in MARKDOWN_SUFFIXES
    yield Document(
        name=name,
        title=(markdown_title(text) if markdown else None) or stem_of(name),
        format="markdown" if markdown else "text",
        text=text,
        pages=make_pages(starts, len(text)),
        has_own_pages=has_pages(decoded.text),
        warnings=((decoded.warning,) if decoded.warning else ()) + garbled(text, starts),
        chapters=make_chapters(text, starts, markdown_headings(text) if markdown else (), text_headings(text, starts)),
    )


def decode(encoded: bytes) -> Decoded | None:
    """Text from bytes: by byte order mark, UTF-16 by its zero bytes, UTF-8, else by its letters. None: not text."""
    for bom, encoding in BOMS:
        if encoded.startswith(bom):
            return decode_as(encoding, encoded)
    if unmarked := utf16_without_mark(encoded):
        return decode_as(unmarked, encoded)
    controls = sum(encoded.count(byte) for byte in range(32) if byte not in TEXT_CONTROLS)
    if b"\0" in encoded or controls > len(encoded) / 200:
        return None
    return decode_utf8(encoded) or decode_by_guess(encoded)


def decode_as(encoding: str, encoded: bytes) -> Decoded | None:
    """Decode by the encoding found; a few invalid characters are replaced, with a warning."""
    try:
        return Decoded(encoded.decode(encoding))
    except UnicodeDecodeError:
        text = encoded.decode(encoding, errors="replace")
    bad = text.count("�")
    return Decoded(text, damaged(bad, encoding)) if bad < len(text) / 100 else None


def utf16_without_mark(encoded: bytes) -> str | None:
    """The byte order of UTF-16 text in mostly Latin letters: every other byte is zero, the others never are."""
    even, odd = encoded[: 1 << 16 : 2], encoded[1 : 1 << 16 : 2]
    if odd.count(0) > len(odd) * 0.7 and not even.count(0):
        return "utf-16-le"
    if even.count(0) > len(even) * 0.7 and not odd.count(0):
        return "utf-16-be"
    return None


def decode_utf8(encoded: bytes) -> Decoded | None:
    """Decode UTF-8, even with a few damaged characters. None: another encoding."""
    try:
        return Decoded(encoded.decode("utf-8"))
    except UnicodeDecodeError:
        text = encoded.decode("utf-8", errors="replace")
    bad = text.count("�")
    good = sum(char > "\x7f" for char in text) - bad
    return Decoded(text, damaged(bad, "utf-8")) if good >= 10 * bad else None


def damaged(count: int, encoding: str) -> str:
    """The warning about lost characters."""
    return f"{count:,} damaged characters (no valid {encoding.upper()}) show as �."


def decode_by_guess(encoded: bytes) -> Decoded | None:
    """Decode text of an older encoding, told by its letters; Windows-1252 where they do not tell. None: by neither."""
    from charset_normalizer import from_bytes

    sample = encoded[next(NOT_ASCII.finditer(encoded)).start() :][:SAMPLE_BYTES]
    sample = sample[: sample.rfind(b"\n") + 1] or sample  # a line end is no part of another letter
    best = from_bytes(sample, cp_isolation=list(OLDER)).best() if len(NOT_ASCII.findall(sample)) >= LEAST_TOLD else None
    codec = best.encoding if best and (best.encoding not in LATIN or len(sample) >= LEAST_LATIN) else USUAL
    if sample.decode(codec, "replace") == sample.decode(USUAL, "replace"):
        codec = USUAL
    for one in (codec, USUAL):
        with suppress(UnicodeDecodeError):
            told = f"Read as {OLDER[one]}, as it is no UTF-8. If letters look wrong, save it as UTF-8."
            return Decoded(encoded.decode(one), told)
    return None


def has_pages(raw: str) -> bool:
    """Whether a text has form feeds, and more than a few of them with more than hardly anything between them."""
    return 0 < raw.count("\f") <= max(MOST_SHORT_PAGES, len(raw) // SHORT_PAGE)


def paginate(raw: str) -> tuple[str, list[int]]:
    """Cut a text into pages: at form feeds if they are those of pages, else by size at paragraph borders.

    Returns:
        The text (line ends normalised, control characters removed, form feeds replaced by blank lines) and the offset
        of each page.
    """
    text = by_stretches(lambda part: part.translate(NO_CONTROLS), raw.replace("\r\n", "\n").replace("\r", "\n"))
    if not has_pages(raw):
        text = text.replace("\f", "\n\n")
        return text, page_starts(text)
    parts = [part.strip("\n") + "\n\n" for part in text.split("\f")]
    if not parts[-1].strip():
        parts.pop()  # a form feed ends a page, so nothing follows the last one
    lengths = [len(part) for part in parts]
    return "".join(parts), list(accumulate(lengths[:-1], initial=0))


def page_starts(text: str) -> list[int]:
    """Offsets that cut a text into pieces of about one page, none much longer, preferably between paragraphs."""
    starts = [0]
    while len(text) - starts[-1] > CHARS_PER_PAGE * 3 // 2:
        starts.append(next_break(text, starts[-1] + CHARS_PER_PAGE // 2, starts[-1] + CHARS_PER_PAGE * 3 // 2))
    return starts


def next_break(text: str, low: int, high: int) -> int:
    """The best place to cut within (low, high], nearest to the middle: paragraph, line, sentence, word, anywhere."""
    middle = (low + high) // 2
    for border in (r"\n[ \t]*\n\s*", r"\n", r"[.!?][\"'”’)]* ", r"\s"):
        ends = [match.end() for match in re.compile(border).finditer(text, low, high)]
        if ends:
            return min(ends, key=lambda end: abs(end - middle))
    return middle


def markdown_title(text: str) -> str | None:
    """The title in the front matter, else the first top-level heading near the beginning."""
    lines = text[:TITLE_WITHIN].splitlines()
    front_matter = takewhile(lambda line: line.rstrip() != "---", lines[1:]) if lines[0].rstrip() == "---" else ()
    titles = [line.removeprefix("title:").strip(" \t\"'") for line in front_matter if line.startswith("title:")]
    titles += [line[2:].strip(" \t#") for line in lines if line.startswith("# ")]
    return next((title[:MAX_TITLE] for title in titles if title), None)
