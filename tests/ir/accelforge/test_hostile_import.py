"""`theodolite import` of files made to do harm: one line, exit code 2, seconds, and neither memory nor a file made."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from theodolite.ir.accelforge.template import MAX_CHARS

FILES = Path(__file__).parent.parent.parent / "data" / "accelforge"
GOOD = (FILES / "case-a" / "000.yaml").read_text()
CASCADE = (FILES / "sdpa.yaml").read_text()
ARCH = (FILES / "gpu_three_level.yaml").read_text()
LIMIT_BYTES = 2 << 30  # of address space: the command by itself takes a part of it
HEAD = "workload:\n  rank_sizes: {A: 2}\n  bits_per_value: {All: 8}\n  einsums:\n"

MAPPINGS: dict[str, tuple[str | bytes, str]] = {
    "a call": ('mapping: !!python/object/apply:os.system ["touch PWNED"]', "line 1: tag '!!python/object/apply:os"),
    "a call by another tag": (
        '%TAG ! tag:yaml.org,2002:python/\n---\nmapping: !object/apply:os.system ["touch PWNED"]',
        "line 3: tag '!!python/object/apply:os.system': objects are not made from a file",
    ),
    "a class": ("mapping: {{ ''.__class__.__mro__ }}", "line 1: getattr in a template"),
    "a class by item": ("mapping: {{ ''['__class__'] }}", "line 1: getitem in a template"),
    "globals": ("mapping: {{ self.__init__.__globals__ }}", "line 1: getattr in a template"),
    "an endless loop": ("{% for i in range(10 ** 12) %}x{% endfor %}", "steps"),
    "an endless search": ("{% if 'x' in range(10 ** 12) %}{% endif %}", "steps"),
    "another file": ("{% include '/etc/passwd' %}", "line 1: include in a template"),
    "laughs": ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "line 2: alias *a: write the node out"),
    "laughs in a template": (
        "{% set a = [1, 1] %}" + "".join(f"{{% set a = [{','.join('a' * 9)}] %}}" for _ in range(12)) + "{{ a }}",
        "no lists of lists",
    ),
    "depth": ("mapping: " + "[" * 100_000, "line 1: nested more than 60 deep"),
    "no UTF-8": (b"mapping: caf\xe9\n", "cannot be read: it is no UTF-8 text from byte 12 on"),
    "nothing": ("", "the file is empty"),
    "100 MB": (b"#" * 100_000_000, f"cannot be read: it has more than {4 * MAX_CHARS:,} bytes"),
    "an unknown node": (GOOD.replace("!Temporal", "!Evil", 1), "line 5: !Evil in a mapping: read are !Storage"),
    "a node that is not read": (GOOD.replace("!Temporal", "!Toll", 1), "line 5: !Toll in a mapping: read are"),
    "a node without a tag": (GOOD.replace("!Storage", "", 1), "line 3: a node of a mapping has a tag"),
    "a tag elsewhere": (GOOD.replace("[Q, K, V, O]", "!Evil [Q, K, V, O]", 1), "line 3: !Evil where tensors is read"),
    "an Einsum over and over": (
        "mapping:\n  nodes:\n  - !Sequential\n    nodes:\n"
        + "    - !Nested {nodes: [!Compute {einsum: Scores, component: TensorCore}]}\n" * 400,
        "rule computed-once: Einsum Scores is computed 400 times",
    ),
    "nodes without an end": (
        "mapping:\n  nodes:\n  - !Sequential\n    nodes:\n"
        + ("    - !Nested\n      nodes:\n" + "      - !Reservation {}\n" * 400
           + "      - !Compute {einsum: Scores, component: TensorCore}\n") * 9,
        "a mapping of more than 2,000 nodes",
    ),
}  # fmt: skip
CASCADES = {
    "a size that is a bomb": (CASCADE.replace("L: {{L}}", "L: 9**9**9"), "line 17: a power of more than 4096 bits"),
    "a set that is a class": (CASCADE.replace("source: Outputs", "source: ().__class__"), "is no arithmetic"),
    "an unknown tag": (CASCADE.replace("workload:", "workload: !Evil"), "line 14: !Evil where workload is read"),
    "a tag on an Einsum": (CASCADE.replace("- einsum:", "- !Evil\n    einsum:", 1), "line 23: !Evil where an Einsum"),
    "many Einsums": (HEAD + "".join(f'  - "T{i + 1}[a] = T{i}[a]"\n' for i in range(400)), "than 200 accesses"),
    "a wide Einsum": (HEAD + '  - "O[a] = ' + "*".join(f"I{i}[a]" for i in range(15_000)) + '"\n', "than 200 accesses"),
    "many ranks": (HEAD + '  - "O[a] = I[' + ",".join(f"a{i}" for i in range(20_000)) + ']"\n', "100 rank variables"),
}
ARCHS = {
    "an unknown kind": (ARCH.replace("!Memory", "!Network", 1), "line 3: !Network in an architecture: read are"),
    "many dimensions": (
        ARCH.replace("[{name: SM, fanout: 128}]", str([{"name": f"D{i}", "fanout": 2} for i in range(400)])),
        "line 2: an architecture of more than 200 nodes and dimensions",
    ),
}
HOSTILE = {
    **{f"mapping: {name}": ("mapping", *case) for name, case in MAPPINGS.items()},
    **{f"workload: {name}": ("workload", *case) for name, case in CASCADES.items()},
    **{f"arch: {name}": ("arch", *case) for name, case in ARCHS.items()},
}


def imported(folder: Path, files: dict[str, Path], *more: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with little memory."""
    mapping, workload, arch = (files[name] for name in ("mapping", "workload", "arch"))
    words = ["import", mapping, "--using", arch, "--using", workload, "--out", folder / "trees"]
    sizes = [word for size in ("BH=8", "L=128", "E=64") for word in ("--set", size)]
    return subprocess.run(
        [sys.executable, "-m", "theodolite.cli", *map(str, words), *sizes, *more],
        capture_output=True, text=True, timeout=120, cwd=folder, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES)),
    )  # fmt: skip


def plain_files() -> dict[str, Path]:
    return {
        "mapping": FILES / "case-a" / "000.yaml",
        "workload": FILES / "sdpa.yaml",
        "arch": FILES / "gpu_three_level.yaml",
    }


def refused(done: subprocess.CompletedProcess[str], folder: Path) -> str:
    """The one line of a refusal that did nothing else."""
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith("theodolite: ")
    assert done.stderr.count("\n") == 1
    assert len(done.stderr) < 1_000
    assert not (folder / "trees").exists()
    assert not (folder / "PWNED").exists()
    return done.stderr


def test_the_limit_leaves_room_for_what_is_right(tmp_path: Path) -> None:
    done = imported(tmp_path, plain_files())
    assert (done.returncode, done.stderr) == (0, "")
    assert [p.name for p in (tmp_path / "trees").iterdir()] == ["000.tree"]


@pytest.mark.parametrize("what", HOSTILE)
def test_one_line_in_seconds_and_no_harm(tmp_path: Path, what: str) -> None:
    part, text, said = HOSTILE[what]
    path = tmp_path / "hostile.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    before = time.monotonic()
    line = refused(imported(tmp_path, {**plain_files(), part: path}), tmp_path)
    assert time.monotonic() - before < 30  # two or three seconds, most of them for the start; the machine may be busy
    assert str(path) in line
    assert said in line


@pytest.mark.parametrize(
    ("name", "said"),
    [("/dev/zero", "it has more than"), (str(FILES), "it is a directory"), ("/nowhere.yaml", "no such file")],
)
def test_what_is_no_file_is_said_in_words(tmp_path: Path, name: str, said: str) -> None:
    line = refused(imported(tmp_path, {**plain_files(), "mapping": Path(name)}), tmp_path)
    assert line.startswith(f"theodolite: {name} cannot be read: {said}")
    assert "Errno" not in line


def test_a_number_of_many_digits_is_refused(tmp_path: Path) -> None:
    line = refused(imported(tmp_path, plain_files(), "--set", "X=" + "9" * 5_000), tmp_path)
    assert "--set reads NAME=NUMBER, of at most 18 digits" in line
