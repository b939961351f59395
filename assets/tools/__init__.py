"""Instruments: what measures the product or makes books for it. launch.py runs them; core and app import none."""
