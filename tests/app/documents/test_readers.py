import os
import sys
from pathlib import Path

import pytest

from app.documents.errors import SUPPORTED, AccessDenied, DocumentError, DocumentNotFound, UnsupportedFormat
from app.documents.readers import display_name, read_document


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DocumentNotFound, match="not a regular file"):
        read_document(tmp_path / "pipe")


def test_a_file_that_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "secret.txt").write_text("words")
    monkeypatch.setattr(Path, "open", refuse)  # and not chmod: the tests may run as root
    with pytest.raises(AccessDenied, match=r"secret\.txt cannot be opened \(Permission denied\)"):
        read_document(tmp_path / "secret.txt")


def test_other_formats_are_named_and_the_action_is_given(tmp_path: Path) -> None:
    (tmp_path / "book.mobi").write_bytes(bytes(60) + b"BOOKMOBI" + bytes(100))
    with pytest.raises(UnsupportedFormat, match="a Kindle book, which is not supported") as caught:
        read_document(tmp_path / "book.mobi")
    assert caught.value.hint == f"Use a {SUPPORTED} file." and "Word" in SUPPORTED


def test_every_error_is_one_problem_and_one_action(tmp_path: Path) -> None:
    (tmp_path / "odd\nname\x1b[31m.txt").touch()
    with pytest.raises(DocumentError) as caught:
        read_document(tmp_path / "odd\nname\x1b[31m.txt")
    assert caught.value.problem.endswith(".")
    assert caught.value.hint.endswith(".")
    assert str(caught.value).isprintable()


def test_names_are_shown_on_one_line() -> None:
    assert display_name(Path("a\nb\x1b.pdf")) == "a�b�.pdf"
    assert display_name(Path("Büch 1.pdf")) == "Büch 1.pdf"
