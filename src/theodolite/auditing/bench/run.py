"""Measures every candidate of this bundle on the GPU of this machine.

    python run.py [--out FILE] [--limit-s SECONDS] [--help]

Needs Python, torch and triton; NumPy where the inputs shall be exactly the frozen ones.  Nothing is imported from the
bundle before every file of it has been found to be what was frozen.
"""

import os
import sys

# before anything else is imported: what lies beside this file is no part of Python until it was found to be frozen
sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != os.path.dirname(os.path.abspath(__file__))]

import hashlib  # noqa: E402
import importlib  # noqa: E402
import json  # noqa: E402
from pathlib import Path  # noqa: E402

HERE = Path(__file__).resolve().parent
PARTS = ("harness", "kernels", "bench")  # folders with code in them; a bundle has some of these
NEEDED = ("torch", "triton")


def broken(folder: Path) -> list[str]:
    """One line for each file that is missing, changed or was never frozen."""
    try:
        frozen = dict(json.loads((folder / "frozen.json").read_text())["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return ["frozen.json is missing or is none"]
    wrong = []
    for name, expected in sorted(frozen.items()):
        path = folder / name
        if not path.is_file():
            wrong.append(f"{name} is missing")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != expected:
            wrong.append(f"{name} is not what was frozen")
    found = {p.relative_to(folder).as_posix() for part in PARTS for p in (folder / part).rglob("*.py")}
    found |= {p.name for p in folder.glob("*.py")}
    return wrong + [f"{name} was never frozen" for name in sorted(found - set(frozen))]


def needed(folder: Path) -> str:
    """What has to be installed, with triton's version where the bundle's config.json names it."""
    config = folder / "config.json"
    version = json.loads(config.read_text()).get("triton", "") if config.exists() else ""
    return f"torch and triton {version}".strip()


def main() -> int:
    wrong = broken(HERE)
    if wrong:
        print(f"refused: {'; '.join(wrong)}: write the bundle again", file=sys.stderr)
        return 2
    sys.dont_write_bytecode = True  # the bundle stays as it was frozen
    # before triton is imported: value names in the IR depend on line information, and nothing may be interpreted
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
    os.environ.pop("TRITON_INTERPRET", None)
    # before NumPy and torch are imported: processes are forked, and a thread would not survive that
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    sys.path.insert(0, str(HERE))
    entry = json.loads((HERE / "frozen.json").read_text()).get("entry", "harness.main")
    try:
        return int(importlib.import_module(entry).main(HERE, sys.argv[1:]))
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            raise
        print(f"refused: needs {needed(HERE)}; {error.name} is not installed here", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
