"""Build llama.cpp's RPC backend alone, for the llama-cpp-python that is installed.

    python tools/build_rpc.py FOLDER

Downloads the source of the installed version with pip and compiles the backend's two files against the
installed libggml-base, in a few seconds instead of the minutes that a whole build takes. Then
DS4CHAT_RPC_LIBRARY names the result for ds4chat, and for the tests of RPC.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import llama_cpp


def main(folder: Path) -> None:
    """Download, compile, and print the variable that names the result."""
    folder.mkdir(parents=True, exist_ok=True)
    version = llama_cpp.__version__
    download = f"-m pip download llama-cpp-python=={version} --no-deps --no-binary :all: -d".split()
    subprocess.run([sys.executable, *download, folder], check=True)
    (archive,) = folder.glob(f"llama_cpp_python-{version}*.tar.gz")
    with tarfile.open(archive) as tar:
        wanted = [m for m in tar.getmembers() if "/vendor/llama.cpp/ggml/" in m.name]
        tar.extractall(folder, wanted, filter="data")
    ggml = next(folder.glob("*/vendor/llama.cpp/ggml"))
    libraries = Path(llama_cpp.__file__).parent / "lib"
    out = folder / "libggml-rpc.so"
    flags = "-O2 -fPIC -shared -std=c++17 -DGGML_BACKEND_DL -DGGML_BACKEND_SHARED -DGGML_BACKEND_BUILD"
    command = ["g++", *flags.split(), "-DGGML_SHARED", f"-I{ggml}/include", f"-I{ggml}/src"]
    command += [f"{ggml}/src/ggml-rpc/{name}" for name in ("ggml-rpc.cpp", "transport.cpp")]
    command += ["-o", str(out), f"-L{libraries}", "-lggml-base", f"-Wl,-rpath,{libraries}"]
    subprocess.run(command, check=True)
    print(f"export DS4CHAT_RPC_LIBRARY={out.resolve()}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
