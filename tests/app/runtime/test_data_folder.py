"""The data folder is its owner's alone, a lock that another program holds is told; and its list of models."""

import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from app.context import upload_files
from app.context.upload_files import IN_USE, in_use
from app.runtime.data_folder import data_dir
from app.runtime.model_folders import ModelFolders
from core.errors import CoreError, NotPossibleHere
from tests.thinkers import save_thinker

posix = pytest.mark.skipif(sys.platform == "win32", reason="modes and locks of files")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@posix
@pytest.mark.parametrize("existed", [False, True])
def test_the_data_folder_and_its_mark_are_closed_to_others(tmp_path: Path, existed: bool) -> None:
    folder = tmp_path / "new" / "data"
    mark = folder / IN_USE
    if existed:
        folder.mkdir(parents=True)
        for path in (folder, mark):
            path.touch()
            path.chmod(0o755)
    assert data_dir(folder) == folder
    with in_use(folder):
        assert [mode(folder), mode(folder / "uploads"), mode(mark)] == [0o700, 0o700, 0o600]


@posix
def test_a_folder_that_cannot_be_closed_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    with pytest.raises(NotPossibleHere, match=r"closed to others \(all users share it\)\. Choose another"):
        data_dir(shared)
    assert mode(shared) == 0o1777, "unchanged"

    (tmp_path / "data").mkdir(mode=0o755)
    monkeypatch.setattr(Path, "chmod", lambda *_: None)  # as on a file system that keeps no rights
    data_dir(tmp_path / "data")
    told = capsys.readouterr().err
    assert "other users" in told and told.count("\n") == 1

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.raises(NotPossibleHere, match="Operation not permitted"):
        data_dir(tmp_path / "data")


@posix
def test_a_held_mark_ends_the_start_and_one_that_cannot_be_locked_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_files, "LONGEST_WAIT_SECONDS", 0.3)
    with closing(sqlite3.connect(tmp_path / IN_USE, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(NotPossibleHere, match="Another program holds"), in_use(tmp_path):
            pytest.fail("it is held")
    with in_use(tmp_path):
        pass
    (tmp_path / "odd" / IN_USE).mkdir(parents=True)
    (left := tmp_path / "odd" / "uploads" / "left").mkdir(parents=True)
    with in_use(tmp_path / "odd"):
        assert left.exists()  # nobody can tell whose it is


@posix
@pytest.mark.parametrize("used", [True, False])
def test_uploads_left_behind_are_swept_unless_another_program_uses_the_folder(tmp_path: Path, used: bool) -> None:
    left = data_dir(tmp_path) / upload_files.FOLDER / "left"
    left.parent.mkdir()
    program = (
        "import sys\nfrom pathlib import Path\nfrom app.context.upload_files import in_use\n"
        "with in_use(Path(sys.argv[1])):\n    print('in use', flush=True)\n    input()\n"
    )
    root, pipe = Path(__file__).resolve().parents[3], subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program, tmp_path], cwd=root, stdin=pipe, stdout=pipe) as other:
        assert other.stdin is not None and other.stdout is not None and other.stdout.readline()
        left.touch()
        if not used:
            other.communicate(b"\n")
        with in_use(tmp_path):
            assert left.exists() == used
        if used:
            other.communicate(b"\n")


# -------------------- the list of models that were brought


def test_brought_models_are_kept_forgotten_and_shared_by_two_programs(tmp_path: Path) -> None:
    one, other = save_thinker(tmp_path / "one"), save_thinker(tmp_path / "other")
    first, second = (ModelFolders(tmp_path / "models.json") for _ in range(2))

    def kept() -> list[str]:
        return [model.name for model in ModelFolders(tmp_path / "models.json").all()]

    for folder in (one, other, one):
        first.bring(str(folder))
    with pytest.raises(CoreError):
        first.bring(str(tmp_path / "none"))
    assert kept() == [str(one), str(other)] == [model.name for model in second.all()]
    second.forget(str(one))
    first.bring(str(other))
    assert kept() == [str(other)]
    second.bring(str(one))
    shutil.rmtree(one)  # on a disk that is not plugged in now
    assert kept() == [str(other)]


def test_what_is_no_list_is_set_aside_and_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "models.json"
    file.write_text('["/a", "/b"')
    ModelFolders(file).bring(str(save_thinker(tmp_path / "one")))
    assert file.with_name("models.json.damaged").read_text() == '["/a", "/b"'
    assert len(list(ModelFolders(file).all())) == 1
