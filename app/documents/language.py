"""In which language and direction a text is written: by its letters, and by the most frequent words of some languages.

It serves the `lang` and `dir` attributes of the page, so that fonts and screen readers suit the text. A library for a
hundred languages would weigh more than the rest of the readers; what is not told here is left open.
"""

import re
import unicodedata
from collections import Counter
from typing import Literal

Direction = Literal["ltr", "rtl"]
SAMPLES, SAMPLE_CHARS = 20, 2_000  # spread over the text
FEWEST_LETTERS, FEWEST_WORDS = 20, 40
LEAST_SHARE, LEAD = 0.08, 1.3  # of the words of one language, and before the next
TAG = re.compile(r"[a-z]{2,3}(-[a-z0-9]{1,8}){0,4}", re.ASCII | re.IGNORECASE)
# By the first word of a letter's Unicode name. Scripts of one large language; kana make Han Japanese.
BY_SCRIPT = {
    "ARMENIAN": "hy", "CJK": "zh", "GEORGIAN": "ka", "GREEK": "el", "HANGUL": "ko", "HEBREW": "he", "HIRAGANA": "ja",
    "KATAKANA": "ja", "THAI": "th",
}  # fmt: skip
BY_WORDS = {
    "LATIN": {
        "cs": "a se na je v že to s i jako pro by ale jsem tak do byl",
        "da": "og i at det er en til på som af den for ikke med der har jeg",
        "de": "der die und das ist nicht zu ein von mit dem den sich auf eine im auch wird",
        "en": "the of and to a in is that it was for with as on be he by his not this",
        "es": "de la que el en y los se del las por un con no una su para es al lo",
        "fi": "ja on ei että oli hän se joka kun mutta niin myös tai ovat mitä",
        "fr": "de la le et les des en un du une que est pour qui dans par pas au sur il",
        "hu": "a az és hogy nem egy is ez volt meg csak de van még mint ha azt",
        "it": "di e il la che in un a per è una del con non i si le da della sono",
        "nl": "de het een en van in is dat op te zijn niet met voor die er aan als ook",
        "pl": "w i na z nie się do że to o jest jak po ale za od przez był dla",
        "pt": "de a o que e do da em um para é com não uma os no se na por mais",
        "sv": "och i att det som en på är av för med den till inte om har de jag ett",
        "tr": "bir ve bu için de da ile çok daha gibi olarak ama ne kadar sonra olan",
    },
    "CYRILLIC": {
        "bg": "на и да се в от за не с е че са по като си това беше",
        "ru": "и в не на что с он как я а его это но по был из к у же от",
        "uk": "і в не на що з та у як до він це за його але від про є був",
    },
    "ARABIC": {
        "ar": "في من على أن إلى عن ما هذا لا كان التي الذي مع هذه كل بعد قد",
        "fa": "و در به از که این را با است آن برای یک می بود شد خود تا",
        "ur": "کے کی میں ہے اور سے کا کو اس یہ نے پر ہیں بھی تھا نہیں",
    },
}  # fmt: skip
WORDS = {
    script: {language: frozenset(words.split()) for language, words in languages.items()}
    for script, languages in BY_WORDS.items()
}
NAMES = {
    "ar": "Arabic", "bg": "Bulgarian", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek", "en": "English",
    "es": "Spanish", "fa": "Persian", "fi": "Finnish", "fr": "French", "he": "Hebrew", "hu": "Hungarian",
    "hy": "Armenian", "it": "Italian", "ja": "Japanese", "ka": "Georgian", "ko": "Korean", "nl": "Dutch",
    "pl": "Polish", "pt": "Portuguese", "ru": "Russian", "sv": "Swedish", "th": "Thai", "tr": "Turkish",
    "uk": "Ukrainian", "ur": "Urdu", "zh": "Chinese",
}  # fmt: skip


def sample(text: str) -> str:
    """Pieces from all over a text."""
    step = max(SAMPLE_CHARS, len(text) // SAMPLES)
    return " ".join(text[start : start + SAMPLE_CHARS] for start in range(0, len(text), step))


def direction_of(text: str) -> Direction:
    """Where most letters are read from."""
    kinds = Counter(map(unicodedata.bidirectional, sample(text)))
    return "rtl" if kinds["R"] + kinds["AL"] > kinds["L"] else "ltr"


def language_of(text: str, stated: str = "") -> str:
    """The language of a text as a BCP 47 tag, or "".

    Args:
        stated: what the file says. It counts, unless its letters are others: programs write their own language there.
    """
    tag = stated.strip().replace("_", "-")
    tag = tag if TAG.fullmatch(tag) and tag.lower() != "und" else ""
    part = sample(text)
    script = script_of(part)
    if not script:
        return tag
    if tag and script in scripts_of(tag.partition("-")[0].lower(), script):
        return tag
    return BY_SCRIPT.get(script) or by_words(part, script)


def script_of(text: str) -> str:
    """The script of most letters; kana count before Han. "": hardly any letters."""
    counts = Counter(unicodedata.name(char, "").partition(" ")[0] for char in text if char.isalpha())
    if counts["CJK"] and counts["HIRAGANA"] + counts["KATAKANA"] > counts["CJK"] / 20:
        counts["HIRAGANA"] += counts.pop("CJK")
    (script, count), *_ = counts.most_common(1) or [("", 0)]
    return script if count >= FEWEST_LETTERS else ""


def scripts_of(language: str, otherwise: str) -> set[str]:
    """The scripts of a language; of one that is not listed here, whatever the text has."""
    listed = {script for script, languages in BY_WORDS.items() if language in languages}
    listed |= {script for script, only in BY_SCRIPT.items() if only == language}
    return listed or {otherwise}


def by_words(text: str, script: str) -> str:
    """The language whose frequent words a text has; "": none clearly."""
    words = re.findall(r"[^\W\d_]+", text.lower())
    counts = Counter(words)
    found = {language: sum(counts[word] for word in known) for language, known in WORDS.get(script, {}).items()}
    if len(words) < FEWEST_WORDS or not found:
        return ""
    (best, most), (_, second) = sorted(found.items(), key=lambda item: -item[1])[:2]
    return best if most >= max(LEAST_SHARE * len(words), LEAD * second) else ""


def language_name(tag: str) -> str:
    """A language in words; the tag itself if it is not listed."""
    return NAMES.get(tag.partition("-")[0].lower(), tag)
