"""Whether a text is one that the model was made for, said once and where people read.

The bundled model's tokenizer knows whole words of its own books, pieces of other English, and only letters of other
scripts and of code: tokens a word tell them apart.
"""

# Measured tokens a word: generated books 1.17, English prose 1.7 to 1.9, Python source 3.5, Cyrillic and Greek over 8.
OWN_KIND, ENGLISH = 1.4, 2.7
ON_PAGE, ON_COMMAND_LINE = "choose a full model on the System tab", "load a full model (--model)"


def reach_note(limits: str, text: str, num_tokens: int, way_out: str) -> str:
    """One line about a text that lies beyond the model; empty where it does not.

    Args:
        limits: `EngineInfo.limits`; empty for full models, which get no note.
        num_tokens: of `text`.
        way_out: what to do where the reader is, ON_PAGE or ON_COMMAND_LINE.
    """
    words = len(text.split())
    if not limits or num_tokens <= OWN_KIND * words:
        return ""
    if num_tokens <= ENGLISH * words:
        return f"{limits}, less so for this text; {way_out} to rely on them."
    return f"{limits}, not for code, tables or other scripts like here; {way_out} for them."
