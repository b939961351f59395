"""The tab "Inside": what the newest answer or race is made of."""
