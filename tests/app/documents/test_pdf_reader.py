import io
import zlib

import pytest
from pypdf import PdfReader
from pypdf.generic import DictionaryObject, NameObject

from app.documents.pdf_reader import QuickReader

OBJECTS = {
    1: b"<< /Type /Catalog /Pages 2 0 R >>",
    2: b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
    3: b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 200 200] >>",
    4: b"(a place that nothing needs)",
    5: b" \n << /A 4 0 R >>",
}


def packed(objects: dict[int, bytes], table: str = "") -> bytes:
    """A PDF whose objects are in one stream."""
    offsets, content = [], b""
    for number, value in objects.items():
        offsets.append(f"{number} {len(content)}")
        content += value + b" "
    head = (table or " ".join(offsets)).encode() + b" "
    body = zlib.compress(head + content)
    stream = (
        b"6 0 obj << /Type /ObjStm /N %d /First %d /Filter /FlateDecode /Length %d >> stream\n%s\nendstream endobj\n"
    )
    file = b"%PDF-1.5\n"
    at = len(file)
    file += stream % (len(objects), len(head), len(body), body)
    rows = [b"\0\0\0\xff", *(bytes([2, 0, 6, index]) for index in range(len(objects)))]
    rows += [bytes([1, *at.to_bytes(2, "big"), 0]), bytes([1, *len(file).to_bytes(2, "big"), 0])]
    listed = b"".join(rows)
    file += b"7 0 obj << /Type /XRef /Size 8 /W [1 2 1] /Root 1 0 R /Length %d >> stream\n" % len(listed)
    return file + listed + b"\nendstream endobj\nstartxref\n%d\n%%%%EOF" % file.rindex(b"7 0 obj")


def known(reader: PdfReader) -> set[int]:
    return {number for _, number in reader.resolved_objects if number in OBJECTS}


def written(reader: PdfReader, number: int) -> bytes:
    found, stream = reader.get_object(number), io.BytesIO()
    assert found is not None
    found.write_to_stream(stream)
    return stream.getvalue()


def test_only_the_objects_that_are_needed_are_read() -> None:
    whole, quick = PdfReader(io.BytesIO(packed(OBJECTS))), QuickReader(io.BytesIO(packed(OBJECTS)))
    assert len(whole.pages) == len(quick.pages) == 1
    assert known(whole) == set(OBJECTS) and known(quick) == {1, 2, 3}
    for number in OBJECTS:
        assert written(quick, number) == written(whole, number)
    last = quick.get_object(5)
    assert isinstance(last, DictionaryObject) and last[NameObject("/A")] == "a place that nothing needs"


@pytest.mark.parametrize("table", ["1 0 2 34 3 76 3 134 5 163", "1 0 2 34 3 76 4 133", "1 0 2 34 3 76 4 x 5 163"])
def test_a_stream_that_is_out_of_the_ordinary_is_read_as_pypdf_does(table: str) -> None:
    def opened(kind: type[PdfReader]) -> object:
        try:
            reader = kind(io.BytesIO(packed(OBJECTS, table)))
            return [written(reader, number) for number in OBJECTS], known(reader)
        except Exception as error:
            return type(error), str(error)

    assert opened(QuickReader) == opened(PdfReader)
