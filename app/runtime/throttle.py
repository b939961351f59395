"""How often those who follow work look for something new."""

INTERVAL_SECONDS = 0.1  # ten times a second is enough for the eye
SIGN_OF_LIFE_SECONDS = 1.0  # between two looks at how far a model's loading is
