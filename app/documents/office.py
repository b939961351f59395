"""Files of the old Office format (compound files): what they are can be told, what is in them is not read.

Word packs a document with a password into such a file, too, as it does not encrypt ZIP archives (MS-OFFCRYPTO, 2.1).
"""

import mmap
from collections.abc import Iterator
from pathlib import Path

from app.documents.document import Document, Extracting
from app.documents.errors import PasswordProtected, UnsupportedFormat

ENCRYPTED = "EncryptedPackage"
OLD_FORMATS = {  # by the name of the stream that holds the contents
    "WordDocument": ("a Word document of the old kind (.doc)", "Open it in Word or LibreOffice, save it as .docx."),
    "Workbook": ("an Excel workbook", "Save the sheets you need as text."),
    "PowerPoint Document": ("a PowerPoint presentation", "Save it as PDF and use that."),
}


def refuse_old_office(file: Path, name: str) -> Iterator[Extracting | Document]:
    """Say what a compound file is.

    Raises:
        PasswordProtected: a newer document is encrypted in it.
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
