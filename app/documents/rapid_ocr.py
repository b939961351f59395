"""Recognition by RapidOCR (PaddleOCR's models in onnxruntime; Apache 2.0). Optional: see requirements-ocr.txt.

One of the engines that `parsers/recognition.py` can use; a test has another. Each has NAME, `version` and `load`.
"""

from collections.abc import Callable, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

from app.documents.printed import Found

if TYPE_CHECKING:
    import numpy as np

NAME = "rapidocr"
PACKAGES = ("rapidocr", "onnxruntime")
SIDE_TO_SEARCH = 960  # pixels: lines are searched in a picture of this size, and recognised in the whole one
MAX_SIDE = 4_000  # pixels; a larger picture is made smaller
LEAST_SCORE = 0.5  # of a line: with less it is a drawing


def version() -> str | None:
    """The engine's version; None if it is not installed. Imports nothing."""
    try:
        versions = [metadata.version(package) for package in PACKAGES]
    except metadata.PackageNotFoundError:
        return None
    return versions[0]


def load(num_threads: int) -> "Callable[[np.ndarray[Any, Any]], Sequence[Found]]":
    """A function from a picture (height, width, blue green red) to the lines found on it.

    Raises:
        ImportError: it is not installed.
    """
    from rapidocr import RapidOCR

    threads = "EngineConfig.onnxruntime.{}_op_num_threads"
    engine = RapidOCR(
        params={
            "Global.log_level": "critical",
            "Global.max_side_len": MAX_SIDE,
            "Global.text_score": LEAST_SCORE,
            "Det.limit_type": "max",
            "Det.limit_side_len": SIDE_TO_SEARCH,
            threads.format("intra"): num_threads,
            threads.format("inter"): 1,
        }
    )

    def recognise(picture: "np.ndarray[Any, Any]") -> Sequence[Found]:
        found = engine(picture, use_cls=False)
        if found.boxes is None or not found.txts:
            return ()
        return [
            Found(text, tuple((float(x), float(y)) for x, y in box))
            for text, box in zip(found.txts, found.boxes, strict=True)
        ]

    return recognise
