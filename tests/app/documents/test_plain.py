from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.documents.charset import codec_of, decode
from app.documents.document import CHARS_PER_PAGE
from app.documents.errors import DocumentTooLarge
from app.documents.plain import paginate
from app.documents.readers import read_document

TEXT = "Der Zähler läuft weiter, sagte sie: „genug“.\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_unicode_encodings_are_recognised_with_and_without_a_mark(encoding: str) -> None:
    decoded = decode((TEXT * 3).encode(encoding))
    assert decoded is not None
    assert decoded.text == TEXT * 3
    assert decoded.warning is None


@pytest.mark.parametrize(
    ("words", "codec", "name"),
    [
        ("Старый лоцман стоял на набережной и считал лодки с приливом. ", "cp1251", "Windows-1251"),
        ("Старый лоцман стоял на набережной и считал лодки с приливом. ", "koi8_r", "KOI8-R"),
        ("Starý lodivod stál na nábřeží a počítal čluny, které připlouvaly. ", "cp1250", "Windows-1250"),
        ("年老的领航员站在码头上，数着随潮水而来的船只。", "gb18030", "GB 18030"),
        ("年老いた水先案内人は岸壁に立ち、潮とともに来る船を数えた。", "shift_jis", "Shift JIS"),
        ("Der alte Lotse zählte die Boote, die über die Flut kamen, für Fräulein König. ", "cp1252", "Windows-1252"),
    ],
)  # fmt: skip
def test_text_of_an_older_encoding_is_told_by_its_letters(words: str, codec: str, name: str) -> None:
    decoded = decode((words * 12).encode(codec))
    assert decoded and decoded.text == words * 12
    assert f"Read as {name}, as it is no UTF-8" in str(decoded.warning)


@pytest.mark.parametrize("label", ["zlib_codec", "rot13", "idna", "unicode_escape", "utf-7", "hex", "mbcs", "utf-16"])
def test_no_document_chooses_a_codec_that_is_none_of_the_web_s(label: str) -> None:
    assert codec_of(label) is None


def test_encodings_of_the_web_are_known_by_their_labels() -> None:
    labels = {"Latin1": "cp1252", "x-sjis": "cp932", "windows-874": "cp874", "gb2312": "gb18030", " UTF8 ": "utf-8"}
    assert {label: codec_of(label) for label in labels} == labels


def test_a_few_letters_of_an_older_encoding_are_windows_1252() -> None:
    decoded = decode("Der König kam für zwei Tage.".encode("cp1252"))
    assert decoded and "König" in decoded.text and "Windows-1252" in str(decoded.warning)


def test_a_damaged_character_does_not_turn_utf8_into_another_encoding() -> None:
    encoded = (TEXT * 20).encode()
    decoded = decode(encoded[:-1] + b"\xff\n")
    assert decoded is not None
    assert decoded.text.count("�") == 1
    assert decoded.text.count("Zähler") == 20
    assert "1 damaged" in str(decoded.warning)


@pytest.mark.parametrize(
    "encoded", [bytes(range(256)) * 4, b"\x00\x01\x02" * 50, b"text\x00text", b"\x81\xff\x8d" * 20]
)
def test_binary_content_is_not_text(encoded: bytes) -> None:
    assert decode(encoded) is None


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_any_text_comes_back_from_utf8(text: str) -> None:
    decoded = decode(text.encode())
    assert decoded is not None
    assert decoded.text == text.removeprefix("\ufeff")


@given(st.text("ab.\n \f\r\t", max_size=400).map(lambda text: text * 40))
def test_pages_cover_a_text_without_gaps_and_none_is_much_too_long(text: str) -> None:
    paged, starts = paginate(text)
    assert starts[0] == 0
    assert starts == sorted(starts)
    assert starts[-1] <= len(paged)
    if "\f" not in text:
        assert all(
            end - start <= CHARS_PER_PAGE * 3 / 2 for start, end in zip(starts, [*starts[1:], len(paged)], strict=True)
        )
        assert "".join(paged.split()) == "".join(text.split())


def test_form_feeds_are_the_pages_of_a_text() -> None:
    text, starts = paginate("one\n\ftwo\f\fthree\f")
    assert text == "one\n\ntwo\n\n\n\nthree\n\n"
    assert [text[start:end].strip() for start, end in zip(starts, [*starts[1:], len(text)], strict=True)] == [
        "one",
        "two",
        "",
        "three",
    ]


def test_control_characters_never_reach_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"plain \x1b[31mred\x1b[0m text\x1a, as some old files end, and more of the same")
    assert "\x1b" not in read_document(tmp_path / "a.txt").text


def test_markdown_is_named_by_its_front_matter_or_first_heading(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text('---\nauthor: me\ntitle: "The Harbour"\n---\n# Chapter\n')
    (tmp_path / "b.md").write_text("Some words.\n\n# A Heading #\n\n# Another\n")
    (tmp_path / "c.md").write_text("No heading.\n")
    documents = [read_document(tmp_path / name) for name in ("a.md", "b.md", "c.md")]
    assert [document.title for document in documents] == ["The Harbour", "A Heading", "c"]
    assert {document.format for document in documents} == {"markdown"}


def test_a_file_no_context_could_hold_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    with (tmp_path / "a.txt").open("wb") as file:
        file.write(b"words ")
        file.truncate(65_000_000)
    with pytest.raises(DocumentTooLarge):
        read_document(tmp_path / "a.txt")
