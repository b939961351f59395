"""The tab "System": model, machine, speed, and location of data."""
