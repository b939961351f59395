"""Checks whether a text is of the kind the model was made for; one note, shown where people read.

The bundled model's tokenizer has whole words of its own books, pieces of other English, and only single letters of
other scripts and of code. So tokens per word separate them.
"""

# Measured tokens per word: generated books 1.17, English prose 1.7 to 1.9, Python source 3.5, Cyrillic and Greek > 8.
OWN_KIND, ENGLISH = 1.4, 2.7
ON_PAGE, ON_COMMAND_LINE = "choose a full model on the System tab", "load a full model (--model)"


def reach_note(limits: str, text: str, num_tokens: int, way_out: str) -> str:
    """One line about a text that the model was not made for; empty for other texts.

    Args:
        limits: `EngineInfo.limits`; empty for full models, which get no note.
        num_tokens: of `text`.
        way_out: what the reader can do, ON_PAGE or ON_COMMAND_LINE.
    """
    words = len(text.split())
    if not limits or num_tokens <= OWN_KIND * words:
        return ""
    if num_tokens <= ENGLISH * words:
        return f"{limits}, less so for this text; {way_out} to rely on them."
    return f"{limits}, not for code, tables or other scripts like here; {way_out} for them."
