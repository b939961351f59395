"""The documents whose text goes into the context: which parts, what they cost in tokens, what fits."""
