"""The servers of this machine and who may use them: the page, and in `openai` the interface for other programs."""
