"""Ahead-of-time compilation: deterministic, killed past its limit, and what it says of the worked example holds."""

import hashlib
import os
import stat
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.example_program import CASE_A, program
from theodolite.errors import KernelError
from theodolite.lowering import compile as aot
from theodolite.lowering.compile import Compiled, compile_many, compile_program, normalise, ttir
from theodolite.lowering.resources import Resources, resources
from theodolite.workloads import sdpa

HANGS = replace(CASE_A, source="import time\ntime.sleep(600)\n" + CASE_A.source)
DIES = replace(CASE_A, source="import os\nos.abort()\n" + CASE_A.source)
WRONG = replace(CASE_A, source=CASE_A.source.replace("tl.exp2(x - m_new[:, None])", "tl.no_such_function(x)"))


@pytest.fixture(scope="module")
def case_a() -> dict[str, Compiled]:
    return compile_program(CASE_A)


def test_ttir_is_the_example_s() -> None:
    hashes = {name: hashlib.sha256(text.encode()).hexdigest()[:12] for name, text in ttir(CASE_A).items()}
    assert hashes == {"flash": "17260f1a2592", "flash_merge": "b2593149ea51"}


def test_the_worker_s_ttir_is_this_process_s(case_a: dict[str, Compiled]) -> None:
    assert {name: c.ttir for name, c in case_a.items()} == ttir(CASE_A)


def test_nothing_depends_on_the_folder(
    case_a: dict[str, Compiled], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path_factory.mktemp("a (folder) with 'odd' \"names\"")
    before = ttir(CASE_A)
    monkeypatch.setattr(tempfile, "tempdir", str(other))
    assert ttir(CASE_A) == before
    monkeypatch.setenv("TMPDIR", str(other))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(other / "cache"))  # empty: the compiler really runs again
    assert compile_program(CASE_A) == case_a


def test_switches_of_the_caller_s_environment_decide_nothing(
    case_a: dict[str, Compiled], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    monkeypatch.setenv("TRITON_OVERRIDE_ARCH", "sm80")
    assert compile_program(CASE_A) == case_a


def test_ttir_leaves_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_DISABLE_LINE_INFO", raising=False)
    ttir(CASE_A)
    assert "TRITON_DISABLE_LINE_INFO" not in os.environ


def test_threads_do_not_spoil_each_other_s_switch() -> None:
    before = ttir(CASE_A)
    with ThreadPoolExecutor(4) as pool:
        assert all(text == before for text in pool.map(lambda _: ttir(CASE_A), range(8)))


def test_line_information_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aot, "_switched", nullcontext)
    monkeypatch.delenv("TRITON_DISABLE_LINE_INFO", raising=False)
    with pytest.raises(KernelError, match="TRITON_DISABLE_LINE_INFO"):
        ttir(CASE_A)


def test_divisibility_is_the_record_s_and_nothing_else() -> None:
    kernels = tuple(replace(k, divisible_by_16=()) for k in CASE_A.kernels)
    assert ttir(CASE_A)["flash"].count("tt.divisibility = 16") == len(CASE_A.kernels[0].divisible_by_16)
    assert "tt.divisibility" not in "".join(ttir(replace(CASE_A, kernels=kernels)).values())


def test_a_hang_a_crash_and_a_mistake_cost_only_themselves() -> None:
    done: list[int] = []
    begun_s = time.monotonic()
    answers = compile_many(
        [HANGS, CASE_A, DIES, WRONG, CASE_A], limit_s=4, workers=1, on_done=lambda i, _: done.append(i)
    )
    assert time.monotonic() - begun_s < 60
    assert sorted(done) == [0, 1, 2, 3, 4]
    assert "not done within 4 s" in str(answers[0])
    assert "SIGABRT" in str(answers[2])
    assert "no_such_function" in str(answers[3])
    assert all("\n" not in str(answers[i]) for i in (0, 2, 3))
    assert answers[1] == answers[4]
    assert isinstance(answers[1], dict)


def test_answers_keep_the_order_asked_for() -> None:
    widths = [sdpa(b=1, h=1, l=64, s=64, d=d) for d in (16, 32, 64)]
    answers = compile_many([program(w) for w in widths], workers=2)
    for answer, workload in zip(answers, widths, strict=True):
        assert isinstance(answer, dict)
        assert f"tensor<64x{workload.ranks['f']}xf32>" in answer["flash"].ttir


def test_compile_program_raises_in_one_line() -> None:
    with pytest.raises(KernelError, match=r"flash: .*no_such_function"):
        compile_program(WRONG)
    with pytest.raises(KernelError, match=r"flash: .*no_such_function"):
        ttir(WRONG)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("def flash_merge(", "def merge("), "no @triton.jit function 'flash_merge'"),
        (("BH, L, S, S_SLICE, BM", "L, BH, S, S_SLICE, BM"), "the source takes .* L, BH, S"),
        (("import triton\n", "import no_such_module\nimport triton\n"), "does not load: ModuleNotFoundError"),
    ],
)
def test_a_source_that_disagrees_with_its_record_is_refused(change: tuple[str, str], message: str) -> None:
    assert CASE_A.source.count(change[0]) == 1
    with pytest.raises(KernelError, match=message):
        ttir(replace(CASE_A, source=CASE_A.source.replace(*change)))


def test_a_constexpr_without_a_value_is_refused() -> None:
    flash, merge = CASE_A.kernels
    with pytest.raises(KernelError, match="BN: each constexpr needs"):
        ttir(replace(CASE_A, kernels=(replace(flash, constexprs={"BM": 64, "F": 64}), merge)))


@given(path=st.text(st.characters(codec="ascii", exclude_characters='"\\\n\r\v\f\x1c\x1d\x1e')))
def test_locations_go_whatever_their_path(path: str) -> None:
    line = f'    %1 = tt.load %q : tensor<4xf16> loc("k"("{path}":3:4))'
    assert normalise(f"{line}  \n\n#loc1 = loc(unknown)\n}} loc(#loc)") == "    %1 = tt.load %q : tensor<4xf16>\n}"


def test_resources_of_the_example(case_a: dict[str, Compiled]) -> None:
    flash, merge = resources(case_a["flash"]), resources(case_a["flash_merge"])
    assert flash == Resources(82, 0, 64 * 64 * 2 + 2 * 2 * 32 * 64 * 2, wgmma=6, mma_sync=0, cp_async=flash.cp_async)
    assert flash.cp_async > 0
    assert merge == Resources(40, 0, 64, wgmma=0, mma_sync=0, cp_async=0)


def test_resources_see_spills_the_small_mma_and_the_lack_of_prefetch() -> None:
    """128 x 128 at d = 128 with 4 warps needs more than 255 registers; 32 rows are too few for wgmma."""
    wide = program(sdpa(b=1, h=2, l=256, s=256, d=128), bm=128, bn=128, warps=4, stages=2)
    small = program(sdpa(b=1, h=2, l=256, s=256, d=64), bm=32, bn=32, warps=4, stages=1)
    spilling, narrow = (resources(compile_program(p)["flash"]) for p in (wide, small))
    assert spilling.registers == 255
    assert spilling.stack_bytes > 0
    assert spilling.shared_bytes == 128 * 128 * 2 + 2 * 2 * 128 * 128 * 2
    assert narrow.wgmma == 0
    assert narrow.mma_sync > 0
    assert narrow.cp_async == 0


def test_resources_refuse_what_is_no_cubin() -> None:
    with pytest.raises(KernelError):
        resources(Compiled("k", "", "", b"not a cubin", 0))


def test_the_cache_folder_is_private(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("t")))
    folder = aot.cache_folder()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o777)
    with pytest.raises(KernelError, match="not private"):
        aot.cache_folder()
