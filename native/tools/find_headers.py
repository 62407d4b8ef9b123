"""Print the folder that holds cuda.h and nvml.h: PyPI's nvidia-cuda-runtime and nvidia-nvml-dev."""

import sys
from pathlib import Path

for entry in sys.path:
    for include in sorted(Path(entry or ".").glob("nvidia/cu*/include"), reverse=True):
        if (include / "cuda.h").exists() and (include / "nvml.h").exists():
            print(include)
            sys.exit(0)
sys.exit("cuda.h and nvml.h not found: pip install nvidia-cuda-runtime nvidia-nvml-dev")
