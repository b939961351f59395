"""pypdf's reader, but quicker: of a stream of objects it reads those that are asked for, not each.

A book keeps tens of thousands of objects in such streams, most of them links and the places to which they lead.
"""

import re
from io import BytesIO
from itertools import pairwise
from typing import BinaryIO, NamedTuple

from pypdf import PdfReader
from pypdf.errors import PyPdfError
from pypdf.generic import IndirectObject, PdfObject, StreamObject, read_object

SPACES = re.compile(rb"[\0\t\n\f\r ]*")
OUT_OF_THE_ORDINARY = (PyPdfError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class ObjectStream(NamedTuple):
    """A stream of objects, unpacked."""

    data: BytesIO
    starts: dict[int, int]  # where each begins, by its number


class QuickReader(PdfReader):
    """Finds what `PdfReader` does, which it asks wherever a stream is out of the ordinary."""

    def __init__(self, stream: BinaryIO) -> None:
        self._object_streams: dict[int, ObjectStream | None] = {}  # by number; None: out of the ordinary
        self._busy = False
        super().__init__(stream)

    def _get_object_from_stream(self, indirect_reference: IndirectObject) -> PdfObject:
        """Read an object that is not known yet; `PdfReader` calls this."""
        number = indirect_reference.idnum
        if self._busy:  # an object asks for another; PdfReader looks after circles
            return super()._get_object_from_stream(indirect_reference)
        self._busy = True
        try:
            found = self._read(number)
        except OUT_OF_THE_ORDINARY:
            found = None
        finally:
            self._busy = False
        if found is None:
            return super()._get_object_from_stream(indirect_reference)
        self.cache_indirect_object(0, number, found)
        return found

    def _read(self, number: int) -> PdfObject | None:
        at = self.xref_objStm[number][0]
        if at not in self._object_streams:
            self._object_streams[at] = None
            self._object_streams[at] = self._opened(at)
        held = self._object_streams[at]
        if held is None or number not in held.starts:
            return None
        held.data.seek(held.starts[number])
        return read_object(held.data, self)

    def _opened(self, at: int) -> ObjectStream | None:
        stream = None if at in self.xref_objStm else IndirectObject(at, 0, self).get_object()
        if not isinstance(stream, StreamObject) or stream.get("/Type") != "/ObjStm":
            return None
        data, first = stream.get_data(), int(str(stream["/First"]))
        table = list(map(int, data[:first].split()))
        numbers, starts = table[::2], [first + offset for offset in table[1::2]]
        rising = all(before < after for before, after in pairwise([first - 1, *starts, len(data)]))
        if len(table) != 2 * int(str(stream["/N"])) or len({*numbers}) < len(numbers) or not rising:
            return None
        begin = [found.end() for start in starts if (found := SPACES.match(data, start))]
        return ObjectStream(BytesIO(data), dict(zip(numbers, begin, strict=True)))
