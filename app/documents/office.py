"""Files of the old Office format (compound files): they are recognised but not read.

Word also stores documents with a password in such files, because it does not encrypt ZIP archives (MS-OFFCRYPTO, 2.1).
"""

import mmap
from collections.abc import Iterator
from pathlib import Path

from app.documents.document import Document, Extracting
from app.documents.errors import PasswordProtected, UnsupportedFormat

AS_CSV = "Save the sheets you need as CSV and use that."
ENCRYPTED = "EncryptedPackage"
OLD_FORMATS = {  # by the name of the stream with the content
    "WordDocument": ("a Word document of the old kind (.doc)", "Open it in Word or LibreOffice, save it as .docx."),
    "Workbook": ("an Excel workbook", AS_CSV),
    "PowerPoint Document": (
        "a PowerPoint presentation of the old kind (.ppt)",
        "Save it as .pptx or PDF and use that.",
    ),
}


def refuse_old_office(file: Path, name: str) -> Iterator[Extracting | Document]:
    """Raise the error for a compound file.

    Raises:
        PasswordProtected: it contains an encrypted newer document.
        UnsupportedFormat: anything else.
    """
    yield Extracting(num_done=0, num_pages=None)
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if content.find(ENCRYPTED.encode("utf-16-le")) >= 0:
            raise PasswordProtected(name)
        for stream_name, (what, hint) in OLD_FORMATS.items():
            if content.find(stream_name.encode("utf-16-le")) >= 0:
                raise UnsupportedFormat(name, what, hint=hint)
    raise UnsupportedFormat(name, "a file of an old Office program")
