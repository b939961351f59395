"""The formats of documents that are read, for the page, the command line and messages. Standard library alone."""

NAMES = {  # by the name in the program: in sentences, short, and with an article
    "pdf": ("PDF", "PDF", "a PDF"),
    "epub": ("EPUB", "EPUB", "an EPUB"),
    "docx": ("Word", "DOCX", "a Word document"),
    "odt": ("OpenDocument", "ODT", "an OpenDocument text"),
    "rtf": ("RTF", "RTF", "an RTF document"),
    "pptx": ("PowerPoint", "PPTX", "a PowerPoint presentation"),
    "fb2": ("FB2", "FB2", "an FB2 book"),
    "html": ("HTML", "HTML", "a web page"),
    "csv": ("CSV", "CSV", "a table"),
    "markdown": ("Markdown", "MD", "a Markdown text"),
    "text": ("text", "TXT", "a text"),
}
SHORT = {kind: short for kind, (_, short, _) in NAMES.items()}
LISTED = ", ".join(name for name, _, _ in NAMES.values())
ONE_OF = f"{LISTED.rpartition(', ')[0]} or {LISTED.rpartition(', ')[2]}"
EACH = f"{LISTED}; ZIP files and folders of these"
DROPPED = ", ".join((*SHORT.values(), "ZIP"))
