"""What share of their peak rates devices reach: the one table behind the analytic cost model.

Where the figures come from
---------------------------
P100, V100: DeepBench (github.com/baidu-research/DeepBench, results/train, sheets "Results FP32" of
DeepBench_NV_P100.xlsx, cuDNN 6, and of DeepBench_NV_V100.xlsx, cuDNN 7.6). `matmul` and
`half_extent` are fitted to all 160 matrix products, which include those of backward passes; the
mean error is 21 % and 18 %.
`convolution`, `half_depth` and `half_outputs` are fitted to the 94 convolutions (error 27 % and
29 %; the P100's rates count direct convolution's operations, also where cuDNN chose Winograd's
algorithm, which needs fewer: so a share can be above 1), and `convolution_backward` to the mean of
the two backward products (error 55 %).
The P100 is taken to be the PCIe board, with a peak of 9.3 TFLOP/s.
K80: cuBLAS 7.0 reaches 3.27 of the 5.04 TFLOP/s of a K40, nearly the same chip (products of 4096^3,
at boost clocks; github.com/clMathLibraries/clBLAS, doc/performance/cuBLAS_7.0/Tesla_K40); the other
figures are estimates after the P100's.
A100, H100, H200: estimates after V100's; a larger chip needs larger tasks. Measure where it counts.
cpu: set after LeNet's and AlexNet's tasks, measured on one AVX-512 core with oneDNN 3.2 (most are
within a factor of 2). Peaks of discovered machines are measured as well
(`flexlegion.machine.local`), so shares are of a core's best product.
`memory`: 75 % of the datasheet's rate is what STREAM-like kernels reach on GPUs; estimates.
`launch_ns`: estimates: a kernel's launch and what a task adds to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from flexlegion.machine.topology import Device
from flexlegion.ops.base import Family

# Of the device's usable memory bandwidth, what an operator of the family gets: windows and indexed
# rows read in short pieces, statistics pass over their data twice. Estimates.
_GPU_MEMORY: Mapping[Family, float] = MappingProxyType(
    {
        "convolution": 1.0,
        "matmul": 1.0,
        "elementwise": 1.0,
        "copy": 1.0,
        "normalization": 0.5,
        "pooling": 0.6,
        "embedding": 0.5,
        "loss": 0.4,
    }
)
# Of the peak, what families without products get: they use no multiply-add units (GPU), and
# exponentials, comparisons and divisions take several instructions. Estimates for GPUs.
_OTHER: Mapping[Family, float] = MappingProxyType(
    {
        "elementwise": 0.25,
        "copy": 0.25,
        "normalization": 0.25,
        "pooling": 0.25,
        "embedding": 0.25,
        "loss": 0.1,
    }
)


@dataclass(frozen=True)
class Efficiency:
    """Shares of peak rates, and the sizes at which tasks reach half of those.

    Parameters
    ----------
    matmul, matmul_backward, convolution, convolution_backward
        Share of the peak that a large task reaches.
    half_extent
        A matrix product with that many rows, and many columns, runs at half its speed; and with
        that many columns.
    half_depth
        So does a convolution with that many multiply-adds an output element.
    half_outputs
        So does a convolution of that many output elements: it cannot fill the device.
    memory
        Usable share of the memory bandwidth.
    launch_ns
        Nanoseconds that every launched kernel adds.
    load_bandwidth
        Bytes a second at which a batch comes in from the host; 0: at the memory's, copied twice.
    other, memory_of
        By family, see above.
    """

    matmul: float
    matmul_backward: float
    convolution: float
    convolution_backward: float
    half_extent: int
    half_depth: int
    half_outputs: int
    memory: float
    launch_ns: int
    load_bandwidth: int
    other: Mapping[Family, float] = field(default_factory=lambda: _OTHER)
    memory_of: Mapping[Family, float] = field(default_factory=lambda: _GPU_MEMORY)


_V100 = Efficiency(0.88, 0.88, 1.0, 0.55, 38, 32, 400_000, 0.75, 5_000, 12_000_000_000)

_BY_MODEL = {
    "K80": Efficiency(0.65, 0.65, 0.60, 0.35, 70, 64, 200_000, 0.70, 8_000, 12_000_000_000),
    "P100": Efficiency(1.00, 1.00, 1.05, 0.50, 70, 64, 400_000, 0.75, 6_000, 12_000_000_000),
    "V100": _V100,
    "A100": replace(_V100, half_outputs=540_000, load_bandwidth=24_000_000_000),
    "H100": replace(_V100, half_outputs=660_000, half_extent=64, load_bandwidth=48_000_000_000),
    "H200": replace(_V100, half_outputs=660_000, half_extent=64, load_bandwidth=48_000_000_000),
}
_GPU = _V100
_CPU = Efficiency(
    matmul=0.90,
    matmul_backward=0.45,
    convolution=1.0,
    convolution_backward=0.75,
    half_extent=8,
    half_depth=48,
    half_outputs=2_000,
    memory=1.0,
    launch_ns=3_000,
    load_bandwidth=0,
    other=MappingProxyType(dict.fromkeys(_OTHER, 0.03)),
    memory_of=MappingProxyType(dict.fromkeys(_GPU_MEMORY, 1.0)),
)


def efficiency_of(device: Device) -> Efficiency:
    """The figures for that device's model, or else for its kind.

    Drivers call a P100 ``Tesla P100-PCIE-16GB``.
    """
    words = re.split(r"[^A-Za-z0-9]+", device.model)
    known = next((word for word in words if word in _BY_MODEL), None)
    if known is not None and device.kind == "gpu":
        return _BY_MODEL[known]
    return _GPU if device.kind == "gpu" else _CPU
