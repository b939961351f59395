"""How well real documents are read: tables of words lost, speed and scans."""
