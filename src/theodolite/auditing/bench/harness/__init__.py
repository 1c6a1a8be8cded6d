"""What a bundle runs on the GPU machine: the standard library, and torch and triton inside functions; nothing else.

main         phases, time limit, signals
jobs         forked children that may crash, hang or be killed
spec         what the manifest and config.json say, as records; the arguments of a launch
device       what the protocol asks of a device; torch_device answers with torch and triton
isolated     one candidate in a process of its own: numerics and an estimate
rounds       the survivors interleaved, round by round
environment  clocks, power, temperature, processes, tick
record       the one result file
"""
