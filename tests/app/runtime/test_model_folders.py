import shutil
from pathlib import Path

import pytest

from app.runtime.model_folders import ModelFolders
from core.errors import CoreError
from tests.thinkers import save_thinker


def test_brought_models_are_kept_and_forgotten(tmp_path: Path) -> None:
    file = tmp_path / "models.json"
    one, other = save_thinker(tmp_path / "one"), save_thinker(tmp_path / "other")
    brought = ModelFolders(file)
    for folder in (one, other, one):
        brought.bring(str(folder))
    with pytest.raises(CoreError):
        brought.bring(str(tmp_path / "none"))
    again = ModelFolders(file)
    assert [model.name for model in again.all()] == [str(one), str(other)]
    shutil.rmtree(one)  # on a disk that is not plugged in now
    assert [model.name for model in again.all()] == [str(other)]
    again.forget(str(other))
    assert list(ModelFolders(file).all()) == []


@pytest.mark.parametrize("text", ["", "{", "{}", "[1, null]", '["/nowhere"]'])
def test_a_damaged_list_is_an_empty_one(tmp_path: Path, text: str) -> None:
    file = tmp_path / "models.json"
    file.write_text(text)
    assert list(ModelFolders(file).all()) == []
