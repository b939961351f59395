"""The documents: short where they are read first, every link leads somewhere, and what they name is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = {
    file: file.read_text(encoding="utf-8")
    for file in (ROOT / "README.md", *sorted((ROOT / "assets" / "docs").glob("*.md")))
}


def anchors(document: Path) -> set[str]:
    """Names of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_leads_somewhere_and_every_document_is_reached() -> None:
    reached = {ROOT / "README.md"}
    for _ in DOCUMENTS:
        for document in list(reached):
            for link in re.findall(r"\]\(([^)\s]+)\)", DOCUMENTS[document]):
                target, _, anchor = link.partition("#")
                if "://" in target:
                    continue
                file = (document.parent / target).resolve() if target else document
                assert file.exists() and file.is_relative_to(ROOT), f"{document.name}: {link}"
                assert not anchor or anchor in anchors(file), f"{document.name}: {link}"
                reached |= {file} & DOCUMENTS.keys()
    assert reached == DOCUMENTS.keys()


def test_the_readme_is_short() -> None:
    assert len(DOCUMENTS[ROOT / "README.md"].splitlines()) <= 170


def test_files_and_tests_that_documents_name_are_there() -> None:
    tests = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    names = {file.name for file in (ROOT / "tests").rglob("test_*.py")}
    for document, text in DOCUMENTS.items():
        for name in re.findall(r"`((?:app|core|assets|tests)/[\w/.-]+\.\w+)`", text):
            assert (ROOT / name).exists(), f"{document.name} names {name}"
        for name in re.findall(r"`(test_\w+)`", text):
            assert f"def {name}(" in tests, f"{document.name} names {name}"
        for name in re.findall(r"`(test_\w+\.py)`", text):
            assert name in names, f"{document.name} names {name}"
