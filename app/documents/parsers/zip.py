"""ZIP files: each file with its bytes in Base64, but for those that are no text for certain, or are refused."""

import mimetypes
import os
from base64 import b64encode
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import BinaryIO

from app.documents.archive import MAX_TOTAL_BYTES, Archive, Refused, RefusedEntry, most_text
from app.documents.bundle import is_hidden, natural
from app.documents.messages import FileUnpacked, Message

MAX_FILES = 500
MEDIA = {**mimetypes.common_types, **mimetypes.types_map}  # those that Python knows: none of the system's lists is read
MAX_UNPACKED_BYTES = 200_000_000  # of all files


def read(stream: BinaryIO) -> Iterator[Message]:
    """The messages of a file."""
    size = stream.seek(0, os.SEEK_END)
    archive = Archive(stream, MAX_TOTAL_BYTES, min(MAX_UNPACKED_BYTES, most_text(size)))
    names = sorted((name for name in archive.names if not is_hidden(name)), key=natural)
    if len(names) > MAX_FILES:
        raise Refused("oversized")
    for name in names:
        file = FileUnpacked(kind="file", name=name, content="")
        if MEDIA.get(PurePosixPath(name).suffix.lower(), "").startswith(("audio/", "image/", "video/")):
            yield {**file, "refused": "no text"}
            continue
        try:
            file["content"] = b64encode(archive.read(name)).decode("ascii")
        except RefusedEntry as error:
            file["refused"] = error.reason
        yield file
