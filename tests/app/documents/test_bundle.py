"""Folders and ZIP files: their documents in natural order, what is left out, and what is refused."""

import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from app.documents import bundle, parsing
from app.documents.archive import SMALL_FILE, SMALL_TEXT, most_text
from app.documents.bundle import read_documents
from app.documents.errors import DocumentTooLarge, EmptyDocument, NotRead, PasswordProtected, UnsupportedFormat
from app.documents.parsing import ParsingLimits
from app.documents.readers import read_document
from tests.hostile.corpus import archive, fb2, rtf, zip_files

pytestmark = pytest.mark.usefixtures("in_this_process")

WORDS = "The pilot counted the boats."
Files = Mapping[str, str | bytes]
Make = Callable[[Path, Files], Path]


def make_zip(folder: Path, files: Files) -> Path:
    (folder / "books.zip").write_bytes(archive(files))
    return folder / "books.zip"


def make_folder(folder: Path, files: Files) -> Path:
    for name, content in files.items():
        path = folder / "books" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / "books"


both = pytest.mark.parametrize("make", [make_zip, make_folder])


@both
def test_its_files_are_documents_in_natural_order(tmp_path: Path, make: Make) -> None:
    files = {
        "Part 10/a.txt": WORDS,
        "Part 2/b 11.rtf": rtf(WORDS + " \\par"),
        "Part 2/B 3.fb2": fb2(f"<p>{WORDS}</p>"),
        "Part 2/table.csv": "Name,Tons\nGull,12\n",
        "Part 2/text.md": "# Log\n\nA gull.",
        **dict.fromkeys((".hidden/x.txt", "__MACOSX/x.txt", "Part 2/Thumbs.db"), "nobody's"),
    }
    order = ["Part 2/B 3.fb2", "Part 2/b 11.rtf", "Part 2/table.csv", "Part 2/text.md"]
    documents = read_documents(make(tmp_path, files))
    assert [document.name for document in documents] == [*order, "Part 10/a.txt"]
    assert [document.format for document in documents] == ["fb2", "rtf", "csv", "markdown", "text"]
    assert documents[2].text == "Name | Tons\nGull | 12" and documents[4].title == "a"
    assert not any(document.warnings for document in documents)


@both
def test_what_is_no_document_is_named_and_the_others_open(tmp_path: Path, make: Make) -> None:
    files = {"a.png": b"\x89PNG\r\n\x1a\n" + bytes(99), "b.pdf": b"%PDF-1.7 cut", "c.txt": WORDS, "i.zip": archive({})}
    path = make(tmp_path, {**files, **{f"z{n}.exe": b"MZ" + bytes(99) for n in range(4)}})
    (document,) = read_documents(path)
    (warning,) = document.warnings
    assert document.name == "c.txt" and warning.startswith(f"Not all of {path.name} was opened. a.png is ")
    assert "b.pdf is cut off" in warning and "And 2 more." in warning


def test_a_zip_in_a_zip_is_refused_in_a_line(tmp_path: Path) -> None:
    path = make_zip(tmp_path, {"inner.zip": archive({"a.txt": WORDS})})
    with pytest.raises(UnsupportedFormat, match=r"inner\.zip is a ZIP archive") as caught:
        read_documents(path)
    assert caught.value.hint == "Unpack it and use its files."
    with pytest.raises(UnsupportedFormat, match="a ZIP archive"):
        read_document(path)


@pytest.mark.parametrize(
    ("what", "error"),
    [
        *((what, DocumentTooLarge) for what in ("a bomb", "2,000 files", "giant sizes")),
        *((f"nothing {what}", EmptyDocument) for what in ("in it", "but folders", "but pictures", "but hidden files")),
        ("encrypted", PasswordProtected),
    ],
)
def test_what_cannot_be_opened_is_refused(tmp_path: Path, what: str, error: type[Exception]) -> None:
    (tmp_path / "a.zip").write_bytes(zip_files()[what]())
    with pytest.raises(error):
        read_documents(tmp_path / "a.zip")


@pytest.mark.parametrize(
    ("rows", "flags", "method", "problem"),
    [
        (400_000, 0, 8, "b.csv is too large"),
        (4, 1, 8, "b.csv is protected by a password"),
        (4, 1, 99, "b.csv is protected by a password"),  # by AES
        (4, 0, 14, "b.csv is packed in another way"),
    ],
)
def test_one_bad_file_of_a_zip_is_left_out_and_named(
    tmp_path: Path, rows: int, flags: int, method: int, problem: str
) -> None:
    path = make_zip(tmp_path, {"a.txt": WORDS, "b.csv": "0,0,0\n" * rows, "c.txt": WORDS})
    data = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        second = data.find(mark, data.find(mark) + 1) + place
        data[second], data[second + 2] = data[second] | flags, method
    path.write_bytes(data)
    documents = read_documents(path)
    assert [document.name for document in documents] == ["a.txt", "c.txt"]
    assert documents[0].warnings[0].startswith(f"Not all of books.zip was opened. {problem}")


def test_names_cannot_leave_the_folder_and_are_safe_to_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temp"))
    (tmp_path / "temp").mkdir()
    names = ("../../up.txt", "/etc/passwd", "C:\\a.txt", "x\u202ey\x1b.txt")
    documents = read_documents(make_zip(tmp_path, {name: f"Words {n}." for n, name in enumerate(names)}))
    assert {document.name for document in documents} == {"up.txt", "etc/passwd", "C:/a.txt", "x\ufffdy\ufffd.txt"}
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["books.zip", "temp"], "what was unpacked is gone"


@pytest.mark.parametrize("name", ["books.zip", "books", "books/a.html"])
def test_a_process_that_the_system_does_not_start_is_told(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    for make in (make_zip, make_folder):
        make(tmp_path, {"a.html": "<html>words"})
    monkeypatch.setattr(parsing, "ParsingProcess", fail)
    with pytest.raises(NotRead, match=r"was not read \(Cannot allocate memory\)"):
        read_documents(tmp_path / name)


def test_too_much_text_in_all_is_refused(tmp_path: Path) -> None:
    path = make_zip(tmp_path, {f"{n}.txt": WORDS * 9 for n in range(9)})
    with pytest.raises(DocumentTooLarge, match="1,000 characters"):
        list(bundle.extract_documents(path, ParsingLimits(chars=1_000)))


def test_a_file_holds_text_in_proportion_to_its_bytes(tmp_path: Path) -> None:
    lines = random.Random(1).randbytes(200_000).hex() + "\n" * 900_000
    with pytest.raises(DocumentTooLarge, match="holds more than any book"):
        read_documents(make_zip(tmp_path, {"a.txt": "\n" * 990_000, "b.txt": "b" * 20_000}))
    large = make_zip(tmp_path, {"a.txt": lines, "b.txt": "b" * 20_000})
    assert large.stat().st_size > SMALL_FILE and len(read_documents(large)[0].text) > SMALL_TEXT
    assert most_text(SMALL_FILE) == SMALL_TEXT == most_text(0) < most_text(SMALL_FILE + 1)
