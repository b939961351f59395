"""The encoding of a markup file: by its byte order mark, by what its bytes can be, or by its declaration."""

import re

from app.documents.encodings import codec_of
from app.documents.plain import decode

DECLARED_WITHIN = 1024  # bytes, as browsers do (HTML, section "prescan a byte stream")
DECLARATIONS = re.compile(
    rb"""<\?xml[^>]{0,200}?encoding\s*=\s*["']([A-Za-z0-9._:-]{1,40})["']"""
    rb"""|<meta\s[^>]{0,200}?charset\s*=\s*["']?\s*([A-Za-z0-9._:-]{1,40})""",
    re.IGNORECASE,
)
ESCAPE = b"\x1b"  # starts a switch from ASCII to other characters (ISO-2022)


def declared(encoded: bytes) -> str | None:
    """The encoding that the markup declares, as written."""
    found = DECLARATIONS.search(encoded[:DECLARED_WITHIN])
    return (found[1] or found[2]).decode("ascii") if found else None


def decode_markup(encoded: bytes) -> str | None:
    """Text from bytes. Valid UTF-8, which most markup is, takes precedence over a declaration; None: not text."""
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
        pass  # not this encoding
    decoded = decode(encoded)
    return decoded.text if decoded else None
