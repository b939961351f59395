"""The rows of a measurement as a table: one line a row, with a header at the start of each table."""

from typing import Any

COLUMNS = {  # column of a row -> its heading, the format of its values
    "context": ("context", "{:,}"),
    "placement": ("placement", "{}"),
    "resident_layers": ("resident", "{}"),
    "part": ("part", "{}"),
    "variant": ("set to", "{}"),
    "query_rows": ("rows", "{:,}"),
    "batch": ("batch", "{}"),
    "text": ("books", "{}"),
    "answer": ("answer", "{}"),
    "method": ("method", "{}"),
    "dtype": ("keys in", "{}"),
    "ms": ("ms", "{:.2f}"),
    "ms_min": ("least", "{:.2f}"),
    "gb_per_second": ("GB/s", "{:.1f}"),
    "gflops": ("GFLOP/s", "{:.0f}"),
    "to_one_row": ("to one", "{:.2f}x"),
    "times_stock": ("to torch", "{:.2f}x"),
    "skill": ("skill", "{}"),
    "n": ("n", "{}"),
    "exact": ("exact", "{:.2f}"),
    "exact_interval": ("95%", "{0[0]:.2f}-{0[1]:.2f}"),
    "f1": ("F1", "{:.2f}"),
    "prefix_share": ("share", "{:.2f}"),
    "new_tokens": ("tokens", "{:,}"),
    "ms_per_token": ("ms/token", "{:.2f}"),
    "ms_per_token_each": ("for each", "{:.2f}"),
    "tokens_per_second": ("tokens/s", "{:.0f}"),
    "speedup_vs_autoregressive": ("speedup", "{:.2f}x"),
    "speedup_by_book": ("by book", "{}"),
    "ratio_to_ours": ("to ours", "{:.2f}x"),
    "alone_ms_per_token": ("alone ms", "{:.2f}"),
    "speedup_vs_plain_alone": ("to alone", "{:.2f}x"),
    "identical_to_alone": ("same", "{}"),
    "page_ms_per_token": ("page ms", "{:.2f}"),
    "page_over_alone": ("page/alone", "{:.3f}x"),
    "client": ("client", "{}"),
    "acceptance_level1": ("level 1", "{:.2f}"),
    "acceptance_level2": ("level 2", "{:.2f}"),
    "prefill_link_bytes": ("read over link", "{:,}"),
    "cpu_attention_share": ("by host", "{:.2f}"),
    "link_gb_per_second": ("link GB/s", "{:.2f}"),
    "link_share": ("of copy", "{:.2f}"),
    "identical_to_first": ("same", "{}"),
    "tokens_per_full_pass": ("per pass", "{:.1f}"),
    "identical_to_autoregressive": ("same", "{}"),
    "near_ties": ("near", "{}"),
    "compared": ("of", "{}"),
    "same_tokens": ("same", "{}"),
    "equal_tokens": ("equal", "{}"),
    "difference": ("first difference", "{}"),
    "difference_logprob": ("nearness", "{:.3f}"),
    "first_token_seconds": ("first s", "{:.2f}"),
    "memory_gib": ("GiB", "{:.2f}"),
    "runs": ("runs", "{}"),
    "memory_over_kv": ("memory/KV", "{:.2f}"),
    "prefill_seconds": ("prefill s", "{:.1f}"),
}
WIDTHS = {
    "part": 23,
    "variant": 22,
    "speedup_by_book": 14,
    "method": 27,
    "placement": 9,
    "skill": 10,
    "n": 4,
    "exact_interval": 10,
    "near_ties": 5,
    "compared": 5,
    "client": 24,
}


def table_line(row: dict[str, Any], *, header: bool) -> str:
    """One row of the table, preceded by the header if requested."""
    names = [name for name in COLUMNS if name in row]
    width = {name: WIDTHS.get(name, max(len(COLUMNS[name][0]), 8)) for name in names}
    cells = [cell(name, row[name]).rjust(width[name]) for name in names]
    head = " ".join(COLUMNS[name][0].rjust(width[name]) for name in names)
    return (head + "\n" if header else "") + " ".join(cells)


def cell(name: str, value: Any) -> str:
    """A value as text of the table."""
    if name == "speedup_by_book":
        return " ".join(f"{ratio:.2f}" for ratio in value)
    return "-" if value is None else COLUMNS[name][1].format(value)
