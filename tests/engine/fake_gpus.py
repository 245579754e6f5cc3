"""A computer with two GPUs, as far as the driver's library and nvidia-smi say so."""

from __future__ import annotations

import subprocess
from pathlib import Path

# Two GPUs. The variable NVML_SAYS says what fails: which GPU is lost, or what it does not support.
LIBRARY = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static int says(const char *what) { return strstr(getenv("NVML_SAYS") ? getenv("NVML_SAYS") : "", what) != 0; }
static int use(void) { const char *at = strstr(getenv("NVML_SAYS") ? getenv("NVML_SAYS") : "", "use=");
    return at ? atoi(at + 4) : 40; }
static int lost(long device) { char name[16]; sprintf(name, "lost%ld", device - 1); return says(name) ? 15 : 0; }
int nvmlInit_v2(void) { return says("no driver") ? 9 : 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(long)(index + 1); return 0; }
int nvmlDeviceGetUUID(long device, char *uuid, unsigned size) { sprintf(uuid, "GPU-%ldf", device); return 0; }
int nvmlDeviceGetUtilizationRates(long device, unsigned *rates) {
    rates[0] = use() + device; rates[1] = 9; return says("MIG") ? 3 : lost(device); }
int nvmlDeviceGetMemoryInfo(long device, unsigned long long *sizes) {
    sizes[0] = 80ULL << 30; sizes[1] = 79ULL << 30; sizes[2] = (unsigned long long)device << 30; return lost(device); }
int nvmlDeviceGetPowerUsage(long device, unsigned *milliwatts) { *milliwatts = 300500; return lost(device); }
"""

TABLE = "0, GPU-1f, NVIDIA H100, 81920\n1, GPU-2f, NVIDIA H100, 81920\n"


def built(folder: Path) -> Path:
    """Make the library and the tool in a folder; return the library."""
    source, library, tool = (folder / name for name in ("nvml.c", "libnvidia-ml.so.1", "nvidia-smi"))
    source.write_text(LIBRARY)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    tool.write_text(f"#!/bin/sh\nprintf '%s' '{TABLE}'\n")
    tool.chmod(0o755)
    return library
