"""What is compared: the programs, how their environments are made, and the ways in which each decodes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OURS, BASELINE = "ours", "ours, plain"
WORKERS = "core.bench.peers.workers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """An environment: pinned packages from the package index. No build for a GPU is ever taken."""

    packages: tuple[str, ...]
    torch: bool = False  # its CPU build too, for the conversion of the model
    removed: tuple[str, ...] = ()  # required by a package, but not needed
    variables: Mapping[str, str] = field(default_factory=dict)  # for builds from source


@dataclass(frozen=True, slots=True)
class Program:
    """One program."""

    name: str
    worker: str  # the module that drives it
    recipe: Recipe | None = None  # None: runs in this program's environment


@dataclass(frozen=True, slots=True)
class Lane:
    """One way in which a program decodes."""

    program: str
    name: str
    options: Mapping[str, Any]
    needs_draft: bool = False


PROGRAMS = (
    Program(OURS, f"{WORKERS}.ours"),
    Program("transformers", f"{WORKERS}.stock"),
    Program(
        "llama.cpp",
        f"{WORKERS}.llama_cpp",
        Recipe(
            packages=("llama-cpp-python==0.3.36", "gguf==0.19.0", "numpy==2.4.6", "safetensors==0.8.0"),
            variables={"CMAKE_ARGS": "-DGGML_NATIVE=ON -DGGML_CUDA=OFF -DLLAVA_BUILD=OFF"},
        ),
    ),
    Program(
        "openvino",
        f"{WORKERS}.openvino",
        Recipe(
            packages=(
                "openvino==2026.4.1",
                "openvino-genai==2026.4.1.0",
                "openvino-tokenizers==2026.4.1.0",
                "optimum-intel==2.2.0",
                "transformers==5.5.4",
            ),
            torch=True,
            removed=("torchvision", "openvino-telemetry"),
        ),
    ),
    Program(
        "onnxruntime",
        f"{WORKERS}.onnxruntime",
        Recipe(
            packages=("onnxruntime-genai==0.18.0", "onnxruntime==1.32.0", "onnx-ir==1.1.0", "transformers==5.23.0"),
            torch=True,
        ),
    ),
)


def _ours() -> list[Lane]:
    methods = {"plain": "autoregressive", "TriForce": "triforce", "TriForce + lookup": "triforce-lookup"}
    lanes = [
        Lane(OURS, f"ours, {label}{suffix}", {"method": method, "kv_bits": bits}, method != "autoregressive")
        for bits, suffix in ((32, ""), (16, ", f16 KV"))
        for label, method in methods.items()
    ]
    return [*lanes, Lane(OURS, "ours, as set by default", {})]


def _llama_cpp() -> list[Lane]:
    return [
        Lane(
            "llama.cpp",
            f"llama.cpp {kv} KV{', FA' if flash else ''}, {guess}",
            {"kv": kv, "flash_attention": flash, "guess": guess},
            guess == "draft",
        )
        for guess in ("plain", "draft", "lookup")
        for kv in ("f16", "f32")
        for flash in (False, True)
        if guess == "plain" or kv == "f16"  # guesses are measured on the faster type
    ]


LANES = (
    *_ours(),
    Lane("transformers", "transformers, static cache", {"cache": "static"}),
    Lane("transformers", "transformers, dynamic cache", {"cache": "dynamic"}),
    Lane("transformers", "transformers, assistant", {"guess": "draft"}, True),
    Lane("transformers", "transformers, lookup", {"guess": "lookup"}),
    *_llama_cpp(),
    *(
        Lane("openvino", f"OpenVINO {kv} KV, {guess}", {"kv": kv, "guess": guess})
        for guess in ("plain", "lookup")
        for kv in ("f16", "f32")
    ),
    Lane("onnxruntime", "ONNX Runtime f32 KV, plain", {}),
)
