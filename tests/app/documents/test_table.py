"""CSV and TSV files: separators, quotation, encodings, the head of the table on every page."""

from pathlib import Path

import pytest

from app.documents import Document, read_document
from app.documents.errors import DamagedDocument, EmptyDocument

pytestmark = pytest.mark.usefixtures("in_this_process")


def opened(folder: Path, content: str | bytes, name: str = "a.csv") -> Document:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_document(folder / name)


@pytest.mark.parametrize(
    "content",
    [
        "Name,Tons\nGull,12\n",
        "Name;Tons\r\nGull;12\r\n",
        "Name\tTons\rGull\t12",
        "\ufeffName|Tons\nGull|12",
        '"Name","Tons"\n"Gull","12"',
        "sep=#\nName#Tons\nGull#12\n",
        "Name,Tons\n\n  Gull ,12\n",
    ],
)
def test_rows_are_lines_whatever_separates_the_cells(tmp_path: Path, content: str) -> None:
    document = opened(tmp_path, content)
    assert document.text == "Name | Tons\nGull | 12"
    assert (document.format, document.title, document.warnings) == ("csv", "a", ())


def test_cells_in_quotation_marks_keep_separators_and_stay_on_one_line(tmp_path: Path) -> None:
    assert opened(tmp_path, 'Name,Said\nGull,"a, ""b""\nc"\n').text == 'Name | Said\nGull | a, "b" c'


def test_the_head_stands_on_every_page(tmp_path: Path) -> None:
    document = opened(tmp_path, "Name,Tons\n" + "".join(f"Boat number {n},{n}\n" for n in range(900)))
    assert len(document.pages) > 5
    tops = [document.page_text(page).partition("\n")[0] for page in document.pages]
    assert set(tops) == {"Name | Tons"}
    rows = [line for line in document.text.splitlines() if line.startswith("Boat")]
    assert rows == [f"Boat number {n} | {n}" for n in range(900)]


@pytest.mark.parametrize("head", ["1,2", "a,a", "a,", "a" * 400 + ",b"])
def test_a_first_row_that_names_no_columns_is_not_repeated(tmp_path: Path, head: str) -> None:
    text = opened(tmp_path, f"{head}\n" + "".join(f"Boat number {n},{n}\n" for n in range(900))).text
    assert "\n\n" not in text


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DamagedDocument):
        opened(tmp_path, b"a,b\n\0\1\2" * 900)
    with pytest.raises(DamagedDocument):
        opened(tmp_path, 'a,b\n"' + "x" * 2_000_000)
    with pytest.raises(EmptyDocument):
        opened(tmp_path, ",,\n,,\n")
