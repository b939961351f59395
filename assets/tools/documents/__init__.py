"""How well real documents are read: tables of words lost, speed, scans and images of pages."""
