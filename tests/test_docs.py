"""The documents: short where they are read first, and every link leads somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "assets" / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(document: Path) -> set[str]:
    """Names of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document: Path) -> None:
    links = LINK.findall(document.read_text(encoding="utf-8"))
    for link in links:
        target, _, anchor = link.partition("#")
        if "://" in target:
            continue
        file = (document.parent / target).resolve() if target else document
        assert file.exists() and file.is_relative_to(ROOT), f"{document.name}: {link}"
        assert not anchor or anchor in anchors(file), f"{document.name}: {link}"


def test_every_document_can_be_reached_from_the_readme() -> None:
    reached, waiting = set[Path](), [DOCUMENTS[0]]
    while waiting:
        document = waiting.pop()
        reached.add(document)
        links = LINK.findall(document.read_text(encoding="utf-8"))
        files = {(document.parent / link.partition("#")[0]).resolve() for link in links if "://" not in link}
        waiting += [file for file in files if file in DOCUMENTS and file not in reached]
    assert reached == set(DOCUMENTS)


def test_the_readme_is_short() -> None:
    assert len(DOCUMENTS[0].read_text(encoding="utf-8").splitlines()) <= 170


def test_files_that_documents_name_are_there() -> None:
    for document in DOCUMENTS:
        for name in re.findall(r"`((?:app|core|assets|tests)/[\w/.-]+\.\w+)`", document.read_text(encoding="utf-8")):
            assert (ROOT / name).exists(), f"{document.name} names {name}"
