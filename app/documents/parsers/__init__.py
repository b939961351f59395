"""What runs in the limited process: a module for each format, with `read(stream, ...)` that yields its messages.

`python -m app.documents.worker NAME FILE ...` runs one. Whatever it raises means that the file is damaged; `Refused`
names another reason.
"""
