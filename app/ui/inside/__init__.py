"""The tab "Inside": how the newest answer or race was made."""
