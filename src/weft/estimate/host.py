"""What the host measures of a kernel that it launches and waits for, as PyTorch's benchmarks of operators do."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_CALLED = {"bmm": 0.72}
"""Share of the host's time per kernel that a call of a function takes, where other rows call a module with a bias
[calibrated: the shortest bmm of sitar-lab/NeuSight takes 39 us on V100, the shortest linear 63 us; 0.5 to 1]."""
_HIDDEN = {"bmm": 12e-6}
"""How long such a kernel may run before the host has recorded the event that ends its time [s; calibrated: the shortest
bmm of sitar-lab/NeuSight take 39.2 to 39.8 us on V100 whether K is 2 or 994; 8 to 18 us]."""


def seen_by_host(
    call: str, kernel: npt.NDArray[np.float64] | float, launch: npt.NDArray[np.float64] | float
) -> npt.NDArray[np.float64]:
    """Seconds that the host measures from one call of a kernel to its end, for each time [s] of kernel and launch.

    That is the host's own time for the launch, and the part of the kernel that it waits for. `call` names the function
    or module of PyTorch, such as "bmm" or "linear": a function costs less than a module, and a short kernel is hidden
    behind it.
    """
    hidden = _HIDDEN.get(call, 0.0)
    called = _CALLED.get(call, 1.0) * launch
    return np.asarray(np.maximum(called - hidden, 0.0) + np.maximum(kernel, hidden))
