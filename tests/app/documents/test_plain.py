"""Text files and Markdown: their encoding, their pages, their titles; and the language and direction of any text."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.documents.charset import codec_of, decode, decode_markup
from app.documents.document import CHARS_PER_PAGE, make_pages
from app.documents.errors import DocumentTooLarge
from app.documents.language import direction_of, language_of
from app.documents.readers import join, pages_of, read_document

# -------------------- encodings

RUSSIAN = "Старый лоцман стоял на набережной и считал лодки с приливом. "
GERMAN = "Der alte Lotse zählte die Boote, die über die Flut kamen, für Fräulein König. "
OLDER = "Read as {}, as it is no UTF-8. If letters look wrong, save it as UTF-8."


@pytest.mark.parametrize(
    ("text", "codec", "warning"),
    [
        *((GERMAN * 3, codec, None) for codec in ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32")),
        (RUSSIAN * 12, "cp1251", OLDER.format("Windows-1251")),
        (RUSSIAN * 12, "koi8_r", OLDER.format("KOI8-R")),
        ("Starý lodivod stál na nábřeží a počítal čluny, které připlouvaly. " * 12, "cp1250",
         OLDER.format("Windows-1250")),
        ("年老的领航员站在码头上，数着随潮水而来的船只。" * 12, "gb18030", OLDER.format("GB 18030")),
        ("年老いた水先案内人は岸壁に立ち、潮とともに来る船を数えた。" * 12, "shift_jis", OLDER.format("Shift JIS")),
        (GERMAN * 12, "cp1252", OLDER.format("Windows-1252")),
        ("Der König kam für zwei Tage.", "cp1252", OLDER.format("Windows-1252")),
    ],
)  # fmt: skip
def test_an_encoding_is_told_by_its_mark_or_its_letters(text: str, codec: str, warning: str | None) -> None:
    assert decode(text.encode(codec)) == (text, warning)


@pytest.mark.parametrize(
    ("label", "codec"),
    [
        *((label, None) for label in ("zlib_codec", "rot13", "idna", "unicode_escape", "utf-7", "hex", "mbcs", "utf-16")),
        ("Latin1", "cp1252"), ("x-sjis", "cp932"), ("windows-874", "cp874"), ("gb2312", "gb18030"), (" UTF8 ", "utf-8"),
    ],
)  # fmt: skip
def test_a_document_chooses_among_the_encodings_of_the_web(label: str, codec: str | None) -> None:
    assert codec_of(label) == codec


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_damaged_character_does_not_turn_utf8_into_another_encoding(mark: str) -> None:
    decoded = decode((mark + GERMAN * 20).encode()[:-1] + b"\xff\n")
    told = "1 damaged character (no valid UTF-8), shown as �."
    assert decoded == ((GERMAN * 20)[:-1] + "�\n", told)


@pytest.mark.parametrize(
    ("text", "codec", "bad", "name"),
    [
        ("年老的领航员站在码头上，数着随潮水而来的船只。" * 12, "gb18030", b"\xff", "GB 18030"),
        ("He said yes. " * 99, "ascii", b"caf\xe9 \xe2\x80\x9d", "Windows-1252"),
    ],
)
def test_a_damaged_character_does_not_refuse_a_text_in_an_older_encoding(
    text: str, codec: str, bad: bytes, name: str
) -> None:
    decoded = decode(text.encode(codec) + bad)
    assert decoded and decoded.text.startswith(text) and decoded.text[len(text) :].count("�") == 1
    assert decoded.warning == f"{OLDER.format(name)} 1 damaged character (no valid {name}), shown as �."


def test_a_damaged_character_does_not_refuse_a_web_page_as_declared() -> None:
    page = "<meta charset='gb2312'>年老的领航员"
    assert decode_markup(page.encode("gb18030") + b"\xff" + b"." * 100) == page + "�" + "." * 100


@pytest.mark.parametrize(
    "encoded", [bytes(range(256)) * 4, b"\x00\x01\x02" * 50, b"text\x00text", b"\x81\xff\x8d" * 20]
)
def test_binary_content_is_not_text(encoded: bytes) -> None:
    assert decode(encoded) is None


# -------------------- pages


@given(st.text("ab.\n \f\r\t", max_size=400).map(lambda text: f"a{text}" * 40))
def test_pages_cover_a_text_without_gaps_and_none_is_much_too_long(text: str) -> None:
    paged, starts, _ = join(pages_of(text), own_pages=False)
    assert starts[0] == 0 and starts == sorted(starts) and starts[-1] <= len(paged)
    if "\f" not in text:
        ends = [*starts[1:], len(paged)]
        assert all(end - start <= CHARS_PER_PAGE * 3 / 2 for start, end in zip(starts, ends, strict=True))
        assert "".join(paged.split()) == "".join(text.split())


def test_form_feeds_are_the_pages_of_a_text(tmp_path: Path) -> None:
    assert pages_of("one\n\ftwo\f\fthree\f") == ["one", "two", "", "three\n\n"]
    assert pages_of("\f" * 101) == ["\n\n" * 101], "hardly anything between them"
    (tmp_path / "a.txt").write_text("Chapter 1\n\nwords\f\fChapter 2\n\nwords\f")
    document = read_document(tmp_path / "a.txt")
    assert document.has_own_pages and [document.page_text(page) for page in document.pages] == [
        "Chapter 1\n\nwords\n\n", "\n\n", "Chapter 2\n\nwords\n\n"
    ]  # fmt: skip
    assert [(chapter.title, chapter.first_page) for chapter in document.chapters] == [
        ("Chapter 1", 1),
        ("Chapter 2", 3),
    ]


def test_labels_that_name_two_pages_alike_are_replaced_by_positions() -> None:
    """A manual whose parts count from 1 again had chapters on "p. clxxviii–7", and "page 3" in six places."""
    assert [page.label for page in make_pages([0, 4, 6], 9, ["1", "2", "1"])] == ["1", "2", "3"]


# -------------------- files


def test_control_characters_never_reach_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(
        b"a \x1b[1;31mred\x1b[0m N\x08NA\x08AM\x08ME\x08E\x1a, and more of the s\x08\x1bame"
    )
    assert read_document(tmp_path / "a.txt").text == "a red NAME, and more of the ame"


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ('---\nauthor: me\ntitle: "The Harbour"\n---\n# Chapter\n', "The Harbour"),
        ("Some words.\n\n# A Heading #\n\n# Another\n", "A Heading"),
        ("The Tide\n===\n```\n# a comment\n```\n", "The Tide"),
        ("No heading.\n", "a"),
    ],
)
def test_markdown_is_named_by_its_front_matter_or_first_heading(text: str, title: str, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(text)
    document = read_document(tmp_path / "a.md")
    assert (document.title, document.format) == (title, "markdown")


def test_a_file_no_context_could_hold_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    with (tmp_path / "a.txt").open("wb") as file:
        file.write(b"words ")
        file.truncate(65_000_000)
    with pytest.raises(DocumentTooLarge):
        read_document(tmp_path / "a.txt")


# -------------------- languages

EN = "The old pilot stood on the quay and counted the boats that came in with the tide, for he was not in a hurry. "
TEXTS = {
    "en": EN,
    "de": "Der alte Lotse stand auf dem Kai und zählte die Boote, die mit der Flut kamen, denn er hatte es nicht eilig. ",
    "fr": "Le vieux pilote était sur le quai et comptait les bateaux qui venaient avec la marée, car il n'est pas pressé. ",
    "es": "El viejo piloto estaba en el muelle y contaba los barcos que llegaban con la marea, porque no tenía prisa. ",
    "nl": "De oude loods stond op de kade en telde de boten die met het tij kwamen, want hij had geen haast in de stad. ",
    "ru": "Старый лоцман стоял на набережной и считал лодки, что пришли с приливом, и он не спешил, как и его друг. ",
    "uk": "Старий лоцман стояв на набережній і рахував човни, що прийшли з припливом, бо він не поспішав, як його друг. ",
    "el": "Ο γέρος πιλότος στεκόταν στην προβλήτα και μετρούσε τις βάρκες. ",
    "he": "הטייס הזקן עמד על הרציף וספר את הסירות שבאו עם הגאות. ",
    "ar": "وقف المرشد العجوز على الرصيف وعد القوارب التي جاءت مع المد، لا من أجل هذا بل لأن في قلبه ما كان فيه. ",
    "ja": "老いた水先案内人は岸壁に立ち、潮とともに来る船を数えていた。",
    "zh": "老領航員站在碼頭上，數著隨潮水而來的船隻，他並不著急，因為天氣很好。",
    "ko": "늙은 도선사는 부두에 서서 밀물과 함께 들어오는 배를 세고 있었다. ",
}


@pytest.mark.parametrize("language", TEXTS)
def test_languages_are_told_from_texts(language: str) -> None:
    assert language_of(TEXTS[language] * 4) == language
    assert direction_of(TEXTS[language]) == ("rtl" if language in ("he", "ar") else "ltr")


@pytest.mark.parametrize(
    ("text", "stated", "language"),
    [
        (EN, "en_US", "en-US"),
        ("", "de", "de"),
        (EN * 4, "nb", "nb"),  # a language that is not listed may be written like this
        (TEXTS["ru"] * 4, "en-US", "ru"),  # a program's own language
        (TEXTS["ja"] * 4, "en", "ja"),
        (EN * 4, "ja", "en"),
        (TEXTS["ja"], "zh-Hant", "ja"),
        *((EN * 4, odd, "en") for odd in ("und", "x", '"><script>', "english (US)", "en-" + "a" * 40, "\u202een")),
    ],
)
def test_what_the_file_says_counts_unless_the_letters_are_others(text: str, stated: str, language: str) -> None:
    assert language_of(text, stated) == language


def test_the_direction_is_that_of_most_letters() -> None:
    assert direction_of(TEXTS["he"] + "Pilot") == "rtl" and direction_of(EN + "שלום") == "ltr"
    assert direction_of(TEXTS["he"] * 20_000 + EN) == "rtl", "looked at all over the text"
    assert direction_of("1, 2, 3") == "ltr"
