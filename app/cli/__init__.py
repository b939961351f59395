"""The commands of `python launch.py`; each module has `run(args) -> int`. Output: text, or one JSON document."""
