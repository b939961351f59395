"""The tab "Read": the conversation, the card of the open book, the figures of answers, the settings."""
