"""The answer to an upload names files by their place in the uploads folder."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from gradio import routes

from app.server import gradio_parts
from app.server.gradio_parts import replace_parts


def test_an_upload_is_answered_with_places_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def store(*_: Any, **__: Any) -> tuple[list[str], list[str], list[str]]:
        return [str(tmp_path / "digest" / "a.txt")], ["from"], ["to"]

    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    monkeypatch.setattr(gradio_parts, "upload_fn", store)
    monkeypatch.setattr(routes, "upload_fn", store)  # put back at the end
    replace_parts()
    assert asyncio.run(routes.upload_fn()) == ([str(Path("digest", "a.txt"))], ["from"], ["to"])
