"""The copies of open PDFs: kept while they are open and no longer, bounded, and drawn once."""

import os
from array import array
from pathlib import Path

import pytest

from app.context.upload_files import CLAIMED, FOLDER, Claim, OpenFiles, claim, forget, in_use
from app.documents.page_image import PageImage, PageNotDrawn


def dropped(folder: Path, name: str = "a", size: int = 10) -> Claim:
    """A file that a page has claimed."""
    place = folder / FOLDER / f"digest-{name}"
    place.mkdir(parents=True)
    (place / "book.pdf").write_bytes(b"x" * size)
    return claim(place / "book.pdf", folder / FOLDER)


def left(folder: Path) -> list[Path]:
    return [path for path in (folder / FOLDER).rglob("*") if path.is_file()]


def test_a_copy_stays_until_its_session_has_closed_the_document_or_the_program_has_ended(tmp_path: Path) -> None:
    files, one, other, last = OpenFiles(), *(dropped(tmp_path, name) for name in "abc")
    assert os.name != "posix" or one.own.parent.stat().st_mode & 0o777 == 0o700, "closed to others"
    files.hold("session", one.own)
    files.hold("third", last.own)
    forget([one, other, last], files.holds)
    files.retain("another", set())
    files.retain("session", {one.own})
    assert sorted(left(tmp_path)) == sorted([one.own, last.own]), "Gradio's file is gone, and so is what nobody holds"
    files.retain("session", set())
    assert left(tmp_path) == [last.own] and not files.holds(one.own)
    files.close()
    assert list((tmp_path / FOLDER).iterdir()) == []
    OpenFiles().hold("session", dropped(tmp_path, "killed").own)
    with in_use(tmp_path):
        assert left(tmp_path) == [], "a killed program leaves nothing after the next start"


def test_all_copies_together_have_a_bound_and_the_oldest_go(tmp_path: Path) -> None:
    files = OpenFiles(most_kept=250)
    claims = [dropped(tmp_path, name, 100) for name in "abc"]
    for number, one in enumerate(claims):
        files.hold(f"session {number}", one.own)
    assert [files.holds(one.own) for one in claims] == [one.own.exists() for one in claims] == [False, True, True]
    large = dropped(tmp_path, "large", 1000)
    files.hold("session", large.own)
    assert [one.own.exists() for one in (*claims, large)] == [False, False, False, True], "the newest always stays"


def test_no_file_of_the_reader_is_ever_deleted(tmp_path: Path) -> None:
    own = tmp_path / "book.pdf"
    near = tmp_path / f"{CLAIMED}x" / "book.pdf"
    near.parent.mkdir()
    files = OpenFiles(most_kept=0)
    for file in (own, near):
        file.write_bytes(b"x")
        files.hold("session", file)
        files.retain("session", set())
    files.close()
    assert own.exists() and near.exists()


def test_a_page_is_drawn_once_and_not_after_its_file_has_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def draw(file: Path, name: str, number: int, num_pages: int, width: int) -> PageImage:
        drawn.append(number)
        return PageImage("x" * 400, "image/webp", 1, 1, "", array("l"))

    monkeypatch.setattr("app.context.upload_files.draw_page", draw)
    files, one = OpenFiles(most_images=2), dropped(tmp_path)
    files.hold("session", one.own)
    for number in (1, 1, 2, 1, 3, 2, 1):  # 3 displaces 2, which then displaces 1
        files.page(one.own, "a", number, 3, 800)
    files.page(one.own, "a", 1, 3, 900)
    files.page(one.own, "a", 1, 3, 900)
    assert drawn == [1, 2, 3, 2, 1, 1], "another width is another image"
    files.retain("session", set())
    with pytest.raises(PageNotDrawn, match="no longer kept"):
        files.page(one.own, "a", 1, 3, 900)
