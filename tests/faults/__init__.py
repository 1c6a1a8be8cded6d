"""Faults planted in real kernels: `plant` freezes a run with them, `drive` does on a GPU what can go wrong.

python -m tests.faults.plant RUN             here
python drive.py RUN/bundle OUT               on the GPU's machine, as root (one scenario mounts a small disk)
"""
