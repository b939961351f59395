"""The documents whose text goes into the context: their parts, their token costs, and what fits."""
