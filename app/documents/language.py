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
# By tag: the name; the script, by the first word of its letters' Unicode names; and the most frequent words, where
# several languages have that script. Kana make Han Japanese.
LANGUAGES = {
    "ar": ("Arabic", "ARABIC", "في من على أن إلى عن ما هذا لا كان التي الذي مع هذه كل بعد قد"),
    "bg": ("Bulgarian", "CYRILLIC", "на и да се в от за не с е че са по като си това беше"),
    "cs": ("Czech", "LATIN", "a se na je v že to s i jako pro by ale jsem tak do byl"),
    "da": ("Danish", "LATIN", "og i at det er en til på som af den for ikke med der har jeg"),
    "de": ("German", "LATIN", "der die und das ist nicht zu ein von mit dem den sich auf eine im auch wird"),
    "el": ("Greek", "GREEK", ""),
    "en": ("English", "LATIN", "the of and to a in is that it was for with as on be he by his not this"),
    "es": ("Spanish", "LATIN", "de la que el en y los se del las por un con no una su para es al lo"),
    "fa": ("Persian", "ARABIC", "و در به از که این را با است آن برای یک می بود شد خود تا"),
    "fi": ("Finnish", "LATIN", "ja on ei että oli hän se joka kun mutta niin myös tai ovat mitä"),
    "fr": ("French", "LATIN", "de la le et les des en un du une que est pour qui dans par pas au sur il"),
    "he": ("Hebrew", "HEBREW", ""),
    "hu": ("Hungarian", "LATIN", "a az és hogy nem egy is ez volt meg csak de van még mint ha azt"),
    "hy": ("Armenian", "ARMENIAN", ""),
    "it": ("Italian", "LATIN", "di e il la che in un a per è una del con non i si le da della sono"),
    "ja": ("Japanese", "HIRAGANA", ""),
    "ka": ("Georgian", "GEORGIAN", ""),
    "ko": ("Korean", "HANGUL", ""),
    "nl": ("Dutch", "LATIN", "de het een en van in is dat op te zijn niet met voor die er aan als ook"),
    "pl": ("Polish", "LATIN", "w i na z nie się do że to o jest jak po ale za od przez był dla"),
    "pt": ("Portuguese", "LATIN", "de a o que e do da em um para é com não uma os no se na por mais"),
    "ru": ("Russian", "CYRILLIC", "и в не на что с он как я а его это но по был из к у же от"),
    "sv": ("Swedish", "LATIN", "och i att det som en på är av för med den till inte om har de jag ett"),
    "th": ("Thai", "THAI", ""),
    "tr": ("Turkish", "LATIN", "bir ve bu için de da ile çok daha gibi olarak ama ne kadar sonra olan"),
    "uk": ("Ukrainian", "CYRILLIC", "і в не на що з та у як до він це за його але від про є був"),
    "ur": ("Urdu", "ARABIC", "کے کی میں ہے اور سے کا کو اس یہ نے پر ہیں بھی تھا نہیں"),
    "zh": ("Chinese", "CJK", ""),
}


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
    if tag and LANGUAGES.get(tag.partition("-")[0].lower(), ("", script, ""))[1] == script:
        return tag
    alone = (language for language, (_, its_script, words) in LANGUAGES.items() if its_script == script and not words)
    return next(alone, "") or by_words(part, script)


def script_of(text: str) -> str:
    """The script of most letters; kana count before Han. "": hardly any letters."""
    counts = Counter(unicodedata.name(char, "").partition(" ")[0] for char in text if char.isalpha())
    counts["HIRAGANA"] += counts.pop("KATAKANA", 0)
    if counts["HIRAGANA"] > counts["CJK"] / 20:
        counts["HIRAGANA"] += counts.pop("CJK", 0)
    (script, count), *_ = counts.most_common(1) or [("", 0)]
    return script if count >= FEWEST_LETTERS else ""


def by_words(text: str, script: str) -> str:
    """The language whose frequent words a text has; "": none clearly."""
    words = re.findall(r"[^\W\d_]+", text.lower())
    counts = Counter(words)
    found = [
        (sum(counts[word] for word in set(frequent.split())), language)
        for language, (_, its_script, frequent) in LANGUAGES.items()
        if its_script == script
    ]
    if len(words) < FEWEST_WORDS or not found:
        return ""
    (second, _), (most, best) = sorted(found)[-2:]
    return best if most >= max(LEAST_SHARE * len(words), LEAD * second) else ""


def language_name(tag: str) -> str:
    """A language in words; the tag itself if it is not listed."""
    return LANGUAGES.get(tag.partition("-")[0].lower(), (tag, "", ""))[0]
