"""The servers of this machine: the page, and in `openai` the interface for other programs; and who may use them."""
