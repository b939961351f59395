"""The formats of documents that are read, for the page, the command line and messages. Standard library alone."""

NAMES = {  # by the name in the program: in sentences, and short
    "pdf": ("PDF", "PDF"),
    "epub": ("EPUB", "EPUB"),
    "docx": ("Word", "DOCX"),
    "odt": ("OpenDocument", "ODT"),
    "rtf": ("RTF", "RTF"),
    "pptx": ("PowerPoint", "PPTX"),
    "fb2": ("FB2", "FB2"),
    "html": ("HTML", "HTML"),
    "csv": ("CSV", "CSV"),
    "markdown": ("Markdown", "MD"),
    "text": ("text", "TXT"),
}
SHORT = {kind: short for kind, (_, short) in NAMES.items()}
LISTED = ", ".join(name for name, _ in NAMES.values())
ONE_OF = f"{LISTED.rpartition(', ')[0]} or {LISTED.rpartition(', ')[2]}"
EACH = f"{LISTED}; ZIP files and folders of these"
DROPPED = ", ".join((*SHORT.values(), "ZIP"))
