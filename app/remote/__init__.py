"""A server with OpenAI's interface in place of the engine: the same actions, and clear words for unknown figures."""
