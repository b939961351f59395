"""The census of families: a part of it here, all of it in the slow suite."""

import pytest

from tests.core.models.census import judged, table
from tests.core.models.tiny_families import families

PART = ["bloom", "cohere", "deepseek_v3", "llama", "mamba", "mixtral", "olmo2", "qwen2", "qwen3_next", "smollm3"]


@pytest.mark.parametrize("family", PART)
def test_a_family_is_the_same_as_in_transformers_or_refused(family: str) -> None:
    found = judged(family)
    assert found.verdict != "WRONG", found.about
    assert found.about, "a family is refused with its reason"


@pytest.mark.slow
@pytest.mark.parametrize("family", [family for family in families() if family not in PART])
def test_every_family_is_the_same_as_in_transformers_or_refused(family: str) -> None:
    found = judged(family)
    assert found.verdict != "WRONG", found.about


def test_the_table_counts_its_verdicts() -> None:
    found = [judged("llama"), judged("bert")]
    assert list(table(found, markdown=False))[-1].startswith("2 families: 1 same, 1 refused, 0 wrong.")
    assert any(line.startswith("| bert | refused |") for line in table(found, markdown=True))
