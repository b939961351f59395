"""The table of a measurement, for people."""

from assets.tools.bench.table import table_line


def test_the_table_has_a_cell_under_every_head() -> None:
    row = {"context": 8192, "method": "h2o", "skill": "fact", "n": 50, "exact": 0.5, "exact_interval": (0.37, 0.63)}
    head, cells = table_line(row, header=True).split("\n")
    assert head.split() == ["context", "method", "skill", "n", "exact", "95%"]
    assert cells.split() == ["8,192", "h2o", "fact", "50", "0.50", "0.37-0.63"]
    assert len(head) == len(cells)
    assert table_line({**row, "exact": None}, header=False).split()[4] == "-"
