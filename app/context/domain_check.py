"""Checks whether a text is of the kind the model was made for; one note, shown where people read.

The bundled model's tokenizer has whole words of its own books, pieces of other English, and only single letters of
other scripts and of code. So tokens per word separate them.
"""

# Measured tokens per word: generated books 1.17, English prose 1.7 to 1.9, Python source 3.5, Cyrillic and Greek > 8.
OWN_KIND, ENGLISH = 1.4, 2.7
OWN_BOOKS, FULL_MODELS = 1.17, 1.6  # tokens a word of the bundled model in its own books, and of full models in English
ON_COMMAND_LINE = "load a full model (--model)"


def reach_note(limits: str, text: str, num_tokens: int, way_out: str = "") -> str:
    """One line about a text that the model was not made for; empty for other texts.

    Args:
        limits: `EngineInfo.limits`; empty for full models, which get no note.
        num_tokens: of `text`.
        way_out: what the reader can do; the page offers models beside the note instead.
    """
    words = len(text.split())
    if not limits or num_tokens <= OWN_KIND * words:
        return ""
    if num_tokens <= ENGLISH * words:
        told, purpose = f"{limits}, less so for this text", "to rely on them"
    else:
        told, purpose = f"{limits}, not for code, tables or other scripts like here", "for them"
    return f"{told}; {way_out} {purpose}." if way_out else f"{told}."
