"""The package in a few lines: map, cost, realise, print kernels.  Needs no GPU, no torch and no triton."""

from theodolite import evaluate, gpu, lower, map_workload, mapping_of, model, realise, sdpa

h200 = gpu("h200")
work = sdpa(b=1, h=8, l=128, s=128, d=64)
for found in map_workload(work, h200, top=3).mapped:  # under CORRECTED, best first
    print(f"{found.seconds * 1e6:.3f} us  {found.schedule}")

tree = mapping_of("flash:bm=64,bn=32,split=2,warps=4,stages=2", work, h200)
for name in ("corrected", "baseline", "splitk,launch"):
    cost = evaluate(tree, work, h200, model(name))
    print(name, f"{cost.seconds * 1e6:.3f} us" if cost.feasible else cost.why_not)

program = lower(realise(tree, work), work)
print([launch.kernel for launch in program.launches], len(program.source.splitlines()), "lines of Triton")
