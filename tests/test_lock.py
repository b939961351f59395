"""The lock files hold one version, with hashes, of everything that requirements.txt asks for."""

import re
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]


def locked() -> dict[str, list[str]]:
    """Versions by name."""
    found: dict[str, list[str]] = {}
    text = "".join(file.read_text(encoding="utf-8") for file in sorted(ROOT.glob("requirements*.lock")))
    for entry in re.split(r"\n(?=[a-z0-9])", text.replace("\\\n", "")):
        if match := re.match(r"([a-z0-9][a-z0-9.-]*)==(\S+)", entry):
            assert "--hash=sha256:" in entry, f"{match[1]} has no hash"
            found.setdefault(match[1], []).append(match[2])
    return found


def test_the_lock_follows_the_requirements() -> None:
    versions, wanted = locked(), (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert len(versions) > 50
    for line in wanted:
        if not line or line.startswith("#"):
            continue
        need = Requirement(line)
        pinned = versions.get(canonicalize_name(need.name), [])
        assert any(need.specifier.contains(version) for version in pinned), f"{line}: {pinned} in the lock"
