"""A server that speaks OpenAI's interface in place of the engine: the same verbs, plain words for what is unseen."""
