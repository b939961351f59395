"""Files in, text out, with its pages and chapters: the formats of `app/document_formats.py`.

`readers.py` reads a file, `bundle.py` a folder or a ZIP file as the documents in it, too. Every problem of a file is a
DocumentError. Knows nothing of models, tokens or the app around it.
"""
