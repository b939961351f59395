"""Which characters the bytes of a markup file mean: its byte order mark, what they can be, what they declare."""

import re

from app.documents.encodings import codec_of
from app.documents.plain import decode

DECLARED_WITHIN = 1024  # bytes, as browsers do (HTML, section "prescan a byte stream")
DECLARATIONS = re.compile(
    rb"""<\?xml[^>]{0,200}?encoding\s*=\s*["']([A-Za-z0-9._:-]{1,40})["']"""
    rb"""|<meta\s[^>]{0,200}?charset\s*=\s*["']?\s*([A-Za-z0-9._:-]{1,40})""",
    re.IGNORECASE,
)
ESCAPE = b"\x1b"  # with it, what looks like ASCII switches to other characters (ISO-2022)


def declared(encoded: bytes) -> str | None:
    """The encoding that markup says it is in, as it says it."""
    found = DECLARATIONS.search(encoded[:DECLARED_WITHIN])
    return (found[1] or found[2]).decode("ascii") if found else None


def decode_markup(encoded: bytes) -> str | None:
    """Text from bytes. UTF-8, which most markup is in, is believed before a declaration; None: no text at all."""
    try:
        if ESCAPE not in encoded:
            return encoded.decode("utf-8-sig")
    except UnicodeDecodeError:
        pass
    label = declared(encoded)
    codec = codec_of(label) if label else None
    try:
        if codec:
            return encoded.decode(codec)
    except UnicodeDecodeError:
        pass  # not the one it is in
    decoded = decode(encoded)
    return decoded.text if decoded else None
