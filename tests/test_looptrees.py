"""What AccelForge's own mapper returned for attention: imported, classified, realised, lowered; and measured."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau

from theodolite.auditing.bench.bundle import read_manifest, read_results
from theodolite.auditing.judge import judge
from theodolite.cost.buffet import count, joules, seconds
from theodolite.errors import TextError, Unsupported
from theodolite.gpus import gpu
from theodolite.gpus.accelforge import hierarchies
from theodolite.ir.accelforge import arch_of, cascade_of, load, mapping_of, names_of
from theodolite.ir.check import check
from theodolite.ir.realise import realise
from theodolite.ir.text import parse, show
from theodolite.looptrees import import_mapping
from theodolite.lowering.lower import kernels_text, lower
from theodolite.workloads import workload

FILES = Path(__file__).parent / "data" / "accelforge"
USING = (FILES / "gpu_three_level.yaml", FILES / "sdpa.yaml")
SIZES = {"BH": 8, "L": 128, "E": 64}
MAPPINGS = sorted((FILES / "case-a").glob("*.yaml"))
RECORDED = Path(__file__).parent.parent / "data" / "looptrees" / "h200-case-a-all-2026-11-30"
H200 = gpu("h200")


@pytest.fixture(scope="module")
def imported():
    return {p.stem: import_mapping(p, USING, SIZES, H200) for p in MAPPINGS}


def test_every_mapping_imports_and_reads_back(imported):
    assert len(imported) == 67
    for found in imported.values():
        assert found.workload.name == workload("sdpa:A").name
        assert parse(show(found.tree)) == found.tree
        check(found.tree, found.workload, H200.sms)


def test_nine_in_ten_share_a_loop_that_only_a_copy_allows(imported):
    broken = [name for name, found in imported.items() if found.unsound]
    assert len(broken) == 60
    assert all("complete-before-read" in imported[name].unsound for name in broken)
    assert {found.fusion for found in imported.values()} == {"split"}


def test_every_mapping_realises_and_lowers_with_its_fission_on_record(imported):
    for name, found in imported.items():
        realised = realise(found.tree, found.workload)
        check(realised, found.workload, H200.sms)
        rules = {r.rule for r in realised.refinements}
        assert "defaults" in rules, name
        assert ("complete-first" in rules) == (found.unsound is not None), name
        assert lower(realised, found.workload).launches


def test_the_recorded_kernels_are_those_that_the_files_import_to(imported):
    for candidate in read_manifest(RECORDED / "manifest.json").candidates:
        found = imported[candidate.origin[0]]
        today = lower(realise(found.tree, found.workload), found.workload)
        assert kernels_text(today.source) == kernels_text(candidate.program.source)


def test_on_an_h200_accelforges_order_does_not_hold_and_the_corrected_one_does():
    manifest = read_manifest(RECORDED / "manifest.json")
    samples = read_results(RECORDED / "samples.json.gz", manifest)
    index = {e["file"][:3]: e["latency_s"] for e in json.loads((FILES / "case-a" / "index.json").read_text())}
    measured = {t.candidate: float(np.median(t.samples_s)) for t in samples.timings if t.status == "ok"}
    candidates = [c for c in manifest.candidates if c.id in measured]
    assert len(candidates) == 67
    assert all(c.passed and {"fidelity", "launches", "numerics"} <= {g.gate for g in c.gates} for c in candidates)
    theirs = kendalltau([index[c.origin[0]] for c in candidates], [measured[c.id] for c in candidates]).statistic
    assert theirs < 0.4
    judgement = judge(manifest, samples, recorded=False)
    (case,) = manifest.cases
    assert judgement.ranking(case, "BASELINE").tau_b < 0.2
    assert judgement.ranking(case, "CORRECTED").tau_b > 0.7
    assert judgement.ranking(case, "CORRECTED").pick.regret < 0.2 < 2 < judgement.ranking(case, "BASELINE").pick.regret


def test_a_workload_that_is_no_attention_is_refused():
    using = [FILES / f"softmax_unsound.{part}.yaml" for part in ("arch", "workload")]
    with pytest.raises(Unsupported, match="no attention that can be lowered: it has not three Einsums"):
        import_mapping(FILES / "softmax_unsound.mapping.yaml", tuple(using), {"L": 16, "S": 64}, H200)


def test_a_file_that_cannot_be_filled_in_is_one_line():
    with pytest.raises(TextError, match=r"sdpa.yaml.*'BH' is undefined"):
        import_mapping(MAPPINGS[0], USING, {}, H200)


def test_on_their_own_architecture_each_costs_what_accelforge_says():
    index = {e["file"]: e for e in json.loads((FILES / "case-a" / "index.json").read_text())}
    for path in MAPPINGS:
        sections = load(*USING, path, variables=SIZES)
        arch, cascade = arch_of(sections), cascade_of(sections)
        names = names_of(arch)
        tree = mapping_of(sections, arch, cascade, names)
        machine, view = hierarchies(arch, cascade, names), cascade.workload.view("accelforge")
        profiles = count(tree.body, cascade.workload, view, machine, {}, bits=cascade.bits, literal=True)
        assert float(seconds(profiles)) == pytest.approx(index[path.name]["latency_s"], rel=1e-5), path.name
        assert float(joules(profiles)) == pytest.approx(index[path.name]["energy_j"], rel=1e-5), path.name
