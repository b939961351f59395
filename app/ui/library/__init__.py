"""The tab "Library": the documents in the context, their parts and pages, and saved books."""
