"""What a bundle runs on the GPU machine: the standard library, and torch and triton inside functions; nothing else.

main         the command line, time limit, signals, `--resume`
known        what the run has found out, as the rows of its journal tell it
journal      rows that are in the file whole or not at all
phases       compile all, draw inputs, each candidate alone
isolated     one candidate in a process of its own: numerics and an estimate
lane         one GPU's rounds from the outside, restarted without an offender
rounds       the survivors interleaved, round by round
jobs         forked children that may crash, hang or be killed
spec         what the manifest and config.json say, as records; the arguments of a launch
device       what the protocol asks of a device; torch_device answers with torch and triton
energy       joules of a replay
environment  clocks, power, temperature, processes, tick
record       the one result file
"""
