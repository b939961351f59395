"""A model on an OpenAI-compatible server in place of the engine: chat over whole documents, and nothing else."""
