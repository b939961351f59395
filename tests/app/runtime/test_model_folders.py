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


def test_a_list_that_cannot_be_written_lasts_as_long_as_the_program(tmp_path: Path) -> None:
    brought = ModelFolders(tmp_path / "none" / "models.json")
    brought.bring(str(save_thinker(tmp_path / "one")))
    assert len(list(brought.all())) == 1


def test_a_path_that_cannot_be_looked_at_keeps_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brought, closed = ModelFolders(tmp_path / "models.json"), save_thinker(tmp_path / "closed")
    brought.bring(str(closed))

    def exists(path: Path, **_options: bool) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", exists)
    assert [model.name for model in brought.all()] == [str(closed)]
