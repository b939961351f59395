import json
import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants

from core.errors import CoreError
from core.models.hub import store
from core.models.hub.local import LocalModel, at_path, in_cache
from tests.thinkers import save_thinker


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete model, to be copied."""
    return save_thinker(tmp_path_factory.mktemp("thinker"))


def put(thinker: Path, folder: Path) -> Path:
    """The model in another folder."""
    return Path(shutil.copytree(thinker, folder, dirs_exist_ok=True))


def add(cache: Path, repo: str) -> Path:
    """A model as the hub's library lays it out."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    snapshot = folder / "snapshots" / "abc"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    snapshot.mkdir(parents=True)
    return snapshot


def found(cache: Path) -> dict[str, LocalModel]:
    return {one.name: one for one in in_cache()}


def test_models_of_other_programs_are_found_usable_or_with_the_reason(cache: Path, thinker: Path) -> None:
    assert found(cache) == {}
    put(thinker, add(cache, "who/thinks"))
    half = put(thinker, add(cache, "who/half"))
    (half / "model.safetensors").unlink()
    ears = add(cache, "openai/whisper-tiny")
    (ears / "config.json").write_text(
        json.dumps({"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]})
    )
    (ears / "model.safetensors").write_bytes(b"x")
    (ears / "tokenizer.json").write_text("{}")
    (cache / "models--who--begun" / "blobs").mkdir(parents=True)
    (cache / "models--who--begun" / "blobs" / f"a{store.PART}").write_bytes(b"x")
    here = found(cache)
    assert set(here) == {"who/thinks", "who/half", "openai/whisper-tiny", "who/begun"}
    thinks = here["who/thinks"]
    assert thinks.dims is not None and (thinks.family, thinks.dims.max_context) == ("llama", 8192)
    assert "lacks model.safetensors" in here["who/half"].problem and "models get who/half" in here["who/half"].hint
    assert here["openai/whisper-tiny"].problem.startswith("openai/whisper-tiny is not a decoder-only text model")
    assert "begun" in here["who/begun"].problem
    assert all(one.dims is None and one.hint for one in here.values() if one is not thinks)


def refused(typed: str | Path, told: str | None = None) -> CoreError:
    with pytest.raises(CoreError, match=told) as caught:
        at_path(str(typed))
    assert caught.value.hint and "\n" not in f"{caught.value.problem}{caught.value.hint}"
    return caught.value


def test_a_path_that_somebody_types_is_checked(tmp_path: Path, thinker: Path) -> None:
    folder = put(thinker, tmp_path / "my model")
    for typed in (str(folder), f' "{folder}" ', str(folder / "config.json"), f"{folder}/"):
        model = at_path(typed)
        assert (model.name, model.shown, model.problem) == (str(folder), "my model", "")
    (put(folder, tmp_path / "half") / "model.safetensors").unlink()
    (put(folder, tmp_path / "damaged") / "config.json").write_text("{")
    files = tmp_path / "files"
    for empty in (tmp_path / "empty", files):
        empty.mkdir()
    for name in ("a.gguf", "b.gguf"):
        (files / name).write_bytes(b"GG")
    refused("", "No path")
    for typed in ("a\0b", "x" * 5000, "~nosuchuser/model", tmp_path / "nowhere"):
        refused(typed, "nothing at")
    refused(tmp_path / "half", "lacks model.safetensors")
    refused(tmp_path / "damaged", "unreadable")
    refused(tmp_path / "empty", "lacks config.json")
    refused(files, "2 GGUF files")
    refused(files / "a.gguf", "no GGUF file")


ODD: list[dict[str, object]] = [
    *({"num_attention_heads": heads} for heads in ("8", 0)),
    *({"vocab_size": size} for size in (0, -5)),
    {"quantization_config": "gptq"},
    {"hidden_act": "nosuch"},
    {"head_dim": 0, "hidden_size": 0},
    {"intermediate_size": [], "num_hidden_layers": None},
    {"num_hidden_layers": 10**6},
    {"eos_token_id": "</s>", "rope_parameters": 7},
    {"layer_types": "full_attention"},
    {"dtype": 16},
]
QUANTISED = ["gptq", "nosuch"]  # loading would take their bits for numbers


@pytest.mark.parametrize(
    "fields", [*ODD, *({"quantization_config": {"quant_method": one}} for one in QUANTISED)], ids=str
)
def test_an_odd_configuration_is_refused_and_hides_no_other_model(
    cache: Path, thinker: Path, fields: dict[str, object]
) -> None:
    put(thinker, add(cache, "who/thinks"))
    odd = put(thinker, add(cache, "who/odd"))
    file = odd / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    assert set(found(cache)) == {"who/thinks", "who/odd"}
    error = refused(odd)
    if isinstance(stated := fields.get("quantization_config"), dict):
        assert f"has quantised weights ({stated['quant_method']})" in error.problem
        assert error.hint == "Fetch the 16-bit model, and use --bits 4."


def test_places_that_may_not_be_read_are_refused_in_one_line(
    cache: Path, tmp_path: Path, thinker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = put(thinker, tmp_path / "closed")
    put(thinker, add(cache, "who/closed"))
    whole = Path.is_file

    def is_file(path: Path, *_: str, **options: bool) -> bool:
        if "closed" in str(path):
            raise PermissionError(13, "Permission denied")
        return whole(path, **options)

    monkeypatch.setattr(Path, "is_file", is_file)
    refused(closed, "may not be read")
    row = found(cache)["who/closed"]
    assert row.dims is None and row.hint == "Check who may read it."
    monkeypatch.setattr(Path, "glob", is_file)
    assert not store.has_parts("who/closed"), "nobody knows"
