"""Pieces of every grammar that the app reads with regular expressions, each the beginning of something endless."""

ATOMS: tuple[str, ...] = (
    # web pages
    "<!---->", "<!--", "<!-- ", "-->", "<", "<a ", "<?xml ", "<!doctype ", "<![CDATA[", "&amp;", "\ufeff", " \n\t",
    # Markdown
    "`", "` `` ", "``a ", "\\`", "```\n", "~~~\n```\n", "- ```\n", "\\(", "\\)", "\\[", "\\]\\[", "$$", "$$ ", "\\\\(",
    "$$\\[\\(", "![", "[](", "*_", "> ", "# ", "a\n===\n", "---\n", "    `", "|`|", "\n\t\n", "\r", "\0000\0",
    "a\\(b\\)", "$$a$$", "\\[a\\]$$",
    # quotations
    "\u201c", "\u201ca b c d ", "\u201ca b c d\u201d ", '"', '"a', '"a\n', "\u201e\u201c", "\u201ea\n\u201d", "\u00ab",
    "a \u2026 ", " . . . ", "[...]", "\"a b c d \u2026 e\"\n", "\u201ca\n",
    # headings of chapters
    "Chapter ", "Chapter 1", "Chapter 1\n", "Chapter 1\n\n", "Chapter i. ", "twenty-one ", "Part one - - ", "\n \n",
    "1.", "1.1.1", ". . ", "... 1\n", " \t", "\u7b2c1\u7ae0\n", "\u7b2c ", "Preface ", "Appendix a\n", "title: \n",
    # printed pages
    "\u00ad", "\u00ad\n", "a-\nb", "a-", "-", "\f", "1\f", "x\n\f", "Page 1 of 9\n\f", "iv\n\f", "!\"", "\u2022 a\n",
    "(cid:1", "(cid:1)", "/g12", "\ufffd", "\ue000", "\u0301", "\u0301\u0327", "e\u0301", "\ufb01", "\u200b",
    "\u202e", "\ud800",
    # choices of pages
    "1-", "1, ", ", ;", " and ", "pp. ", "chapter 1", "#1-#2 ", " to ",
    # anything else
    "a", "a ", "a\n", "A\n", "1", "\u00e9", "\U0001f600", "<|im_start|>", "%PDF-", "PK\x03\x04", "{", "[", "\\", "'",
    "\x1b[", "\x1b[0;1m", "a\x08",
)  # fmt: skip
