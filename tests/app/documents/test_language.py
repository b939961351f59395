"""In which language and direction texts are, and what is left open."""

import pytest

from app.documents.language import direction_of, language_of

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


def test_what_the_file_says_counts_unless_the_letters_are_others() -> None:
    assert language_of(EN, "en_US") == "en-US" and language_of("", "de") == "de"
    assert language_of(EN * 4, "nb") == "nb", "a language that is not listed may be written like this"
    assert language_of(TEXTS["ru"] * 4, "en-US") == "ru", "a program's own language"
    assert language_of(TEXTS["ja"] * 4, "en") == "ja" and language_of(EN * 4, "ja") == "en"
    assert language_of(TEXTS["ja"], "zh-Hant") == "ja"
    for odd in ("und", "x", '"><script>', "english (United States)", "en-" + "a" * 40, "\u202een"):
        assert language_of(EN * 4, odd) == "en", odd


def test_the_direction_is_that_of_most_letters() -> None:
    assert direction_of(TEXTS["he"] + "Pilot") == "rtl" and direction_of(EN + "שלום") == "ltr"
    assert direction_of(TEXTS["he"] * 20_000 + EN) == "rtl", "looked at all over the text"
    assert direction_of("1, 2, 3") == "ltr"
