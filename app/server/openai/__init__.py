"""The engine behind an OpenAI-compatible interface over HTTP; it knows nothing of the page."""
