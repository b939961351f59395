"""The tab "Race": one question, several methods side by side, and the proof card."""
