"""The encoding of a file: by its byte order mark, by what its bytes can be, by its declaration, or by its letters."""

import codecs
import re
from contextlib import suppress
from typing import NamedTuple

from app.formats import plural

TEXT_CONTROLS = set(b"\t\n\v\f\r\x1a\x1b\b")  # control bytes that real text files contain
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
DECLARED_WITHIN = 1024  # bytes, as browsers do (HTML, section "prescan a byte stream")
DECLARATIONS = re.compile(
    rb"""<\?xml[^>]{0,200}?encoding\s*=\s*["']([A-Za-z0-9._:-]{1,40})["']"""
    rb"""|<meta\s[^>]{0,200}?charset\s*=\s*["']?\s*([A-Za-z0-9._:-]{1,40})""",
    re.IGNORECASE,
)
ESCAPE = b"\x1b"  # starts a switch from ASCII to other characters (ISO-2022)
# Those of the web (WHATWG, Encoding Standard), by Python's names: some of Python's others unpack data.
OF_THE_WEB = frozenset(
    [
        "big5hkscs", "cp866", "cp874", "cp932", "cp949", "cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "cp1255",
        "cp1256", "cp1257", "cp1258", "euc_jp", "gb18030", "iso2022_jp", "iso8859-2", "iso8859-3", "iso8859-4",
        "iso8859-5", "iso8859-6", "iso8859-7", "iso8859-8", "iso8859-10", "iso8859-13", "iso8859-14", "iso8859-15",
        "iso8859-16", "koi8-r", "koi8-u", "mac-cyrillic", "mac-roman", "utf-8",
    ]
)  # fmt: skip
WIDER = {  # what browsers take for it
    "ascii": "cp1252", "big5": "big5hkscs", "euc_kr": "cp949", "gb2312": "gb18030", "gbk": "gb18030",
    "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "shift_jis": "cp932", "tis-620": "cp874",
}  # fmt: skip

# The font Symbol, by its codes (Adobe, Symbol encoding; Unicode's names).
SYMBOL = dict(
    zip(
        (*range(0x20, 0x7F), *range(0xA0, 0xFF)),
        " !∀#∃%&∋()∗+,−./0123456789:;<=>?≅ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ[∴]⊥_"
        "‾αβχδεφγηιϕκλμνοπθρστυϖωξψζ{|}∼"
        "€ϒ′≤⁄∞ƒ♣♦♥♠↔←↑→↓°±″≥×∝∂•÷≠≡≈…⏐⎯↵ℵℑℜ℘⊗⊕∅∩∪⊃⊇⊄⊂⊆∈∉∠∇®©™∏√⋅¬∧∨⇔⇐⇑⇒⇓◊〈®©™∑⎛⎜⎝⎡⎢⎣⎧⎨⎩⎪�〉∫⌠⎮⌡⎞⎟⎠⎤⎥⎦⎫⎬⎭",
        strict=True,
    )
)


class Decoded(NamedTuple):
    """Decoded text, with a warning for its reader, if any."""

    text: str
    warning: str | None = None


def codec_of(label: str) -> str | None:
    """Python's codec for a label in a document; None: documents may not choose it."""
    label = label.strip().lower().removeprefix("x-")
    try:
        name = codecs.lookup(re.sub(r"^windows-(?=\d+$)", "cp", label)).name
    except (LookupError, ValueError):
        return None
    name = WIDER.get(name, name)
    return name if name in OF_THE_WEB else None


def declared(encoded: bytes) -> str:
    """The encoding that the markup declares, as written; "": none."""
    found = DECLARATIONS.search(encoded[:DECLARED_WITHIN])
    return (found[1] or found[2]).decode("ascii") if found else ""


def decode_markup(encoded: bytes) -> str | None:
    """Text from bytes. Valid UTF-8, which most markup is, takes precedence over a declaration; None: not text."""
    codec = codec_of(declared(encoded))
    for one in (None if ESCAPE in encoded else "utf-8-sig", codec):
        with suppress(UnicodeDecodeError):
            if one:
                return encoded.decode(one)
    decoded = (decode_as(codec, encoded) if codec and codec != "utf-8" else None) or decode(encoded)
    return decoded.text if decoded else None


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
    name = OLDER.get(encoding, encoding.removesuffix("-sig").upper())
    return f"{plural(count, 'damaged character')} (no valid {name}), shown as �."


def decode_by_guess(encoded: bytes) -> Decoded | None:
    """Decode text of an older encoding, told by its letters; Windows-1252 where they do not tell. None: by neither."""
    from charset_normalizer import from_bytes

    sample = encoded[next(NOT_ASCII.finditer(encoded)).start() :][:SAMPLE_BYTES]
    sample = sample[: sample.rfind(b"\n") + 1] or sample  # a line end is no part of another letter
    starts = [sample[: len(sample) // part] for part in (1, 2, 8)]  # a shorter one where a damaged letter is in it
    told = (one for one in starts if len(NOT_ASCII.findall(one)) >= LEAST_TOLD)
    best = next(filter(None, (from_bytes(one, cp_isolation=list(OLDER)).best() for one in told)), None)
    codec = best.encoding if best and (best.encoding not in LATIN or len(sample) >= LEAST_LATIN) else USUAL
    if sample.decode(codec, "replace") == sample.decode(USUAL, "replace"):
        codec = USUAL
    for one in (codec, USUAL):
        if found := decode_as(one, encoded):
            warning = f"Read as {OLDER[one]}, as it is no UTF-8. If letters look wrong, save it as UTF-8."
            return Decoded(found.text, " ".join(filter(None, (warning, found.warning))))
    return None


def as_symbols(encoded: bytes) -> str:
    """What the font Symbol shows for these codes."""
    return "".join(SYMBOL.get(code, "�") for code in encoded)
