"""From a prompt to an answer: prefill, the decode loop, several answers in turns, and their events."""
