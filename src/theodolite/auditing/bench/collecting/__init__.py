"""What a grid bundle runs on the GPU machine: thousands of candidates, on top of `harness` and nothing else.

main        phases, time limit, signals, one supervised worker a GPU
grid        candidates.json.gz as records
supervisor  one worker from the outside: what it told, whether it lives, whom to blame
compiles    unique kernels in short-lived processes, while the GPU already measures
worker      first runs, then shuffled rounds over all survivors, in one long-lived process
device      what a grid asks of a device besides the harness's protocol
torch_grid  the device: `harness.torch_device` with kernels and references shared by candidates
record      the one result file
"""
