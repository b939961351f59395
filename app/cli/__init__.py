"""The commands of `python launch.py`: each module has `run(args) -> int`. Text for people or one JSON document."""
