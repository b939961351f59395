"""Warnings about text that was extracted without an error and means nothing."""

import pytest

from app.documents.quality import is_garbled

ENGLISH = (
    "The old pilot stood on the quay and counted the boats that came in with the tide, as he had done on every "
    "evening of his life, and none of them was the one that he was waiting for. Nobody asked him why. "
) * 3
SHIFTED = "".join(chr((ord(char) - 29) % 128) if char.isalpha() else char for char in ENGLISH)
TABLE = "\n".join(f"{n} | {n * n} | {n * 3.7:.2f} | kg" for n in range(60))


@pytest.mark.parametrize(
    "page",
    [
        ENGLISH,
        "Größenordnungsmäßig verschieden waren Donaudampfschifffahrtsgesellschaften und Rheinschifffahrtsämter. " * 5,
        "Příliš žluťoučký kůň úpěl ďábelské ódy, čtvrtek, prst, krk, vlk, smrt, zmrzl, strčil skrz. " * 5,
        "港の古い水先案内人は岸壁に立って、潮とともに入ってくる船を数えた。" * 10,
        "Старый лоцман стоял на набережной и считал лодки, что пришли вместе. " * 10,
        TABLE,
        "x = a b + c d - e f\n" * 4,
        ENGLISH + "� ",
        "",
    ],
    ids=["English", "German", "Czech", "Japanese", "Russian", "table", "formula", "one lost letter", "empty"],
)
def test_good_pages_are_good(page: str) -> None:
    assert not is_garbled(page)


@pytest.mark.parametrize(
    "page",
    [
        SHIFTED,
        " ".join(ENGLISH.replace(" ", "")),
        ENGLISH.replace(" ", ""),
        ENGLISH.replace("e", "�"),
        "".join(chr(0xE000 + ord(char)) for char in ENGLISH),
        "(cid:12)(cid:7)(cid:44) " * 20,
        ENGLISH.translate(str.maketrans("aeiou", "bcdfg")),
    ],
    ids=["shifted", "spaced out", "run together", "replaced", "private", "glyph numbers", "no vowels"],
)
def test_broken_text_layers_are_garbled(page: str) -> None:
    assert is_garbled(page)
