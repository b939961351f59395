"""How the bundled models and sample books were made; nothing here runs when the product runs."""
