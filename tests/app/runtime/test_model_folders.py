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


def test_what_is_no_list_is_set_aside_and_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "models.json"
    file.write_text('["/a", "/b"')
    ModelFolders(file).bring(str(save_thinker(tmp_path / "one")))
    assert file.with_name("models.json.damaged").read_text() == '["/a", "/b"'
    assert len(list(ModelFolders(file).all())) == 1


def test_two_programs_share_the_list(tmp_path: Path) -> None:
    file = tmp_path / "models.json"
    one, other = save_thinker(tmp_path / "one"), save_thinker(tmp_path / "other")
    first, second = ModelFolders(file), ModelFolders(file)
    first.bring(str(one))
    second.bring(str(other))
    assert [model.name for model in first.all()] == [str(other), str(one)]
    second.forget(str(one))
    first.bring(str(other))
    assert [model.name for model in ModelFolders(file).all()] == [str(other)]
