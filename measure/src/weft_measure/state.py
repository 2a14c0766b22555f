"""Clock and power of an NVIDIA GPU while it is measured, as nvidia-smi tells them many times a second."""

from __future__ import annotations

import shutil
import statistics
import subprocess
from collections.abc import Iterable, Mapping
from threading import Lock, Thread

_PERIOD_MS = 20
_FIELDS = {"clocks.sm": "sm_mhz", "power.draw": "power_w"}


class StateLog:
    """Samples since the last question of the GPU that nvidia-smi calls `name`; without nvidia-smi there are none."""

    def __init__(self, name: str = "0") -> None:
        self._samples: list[Mapping[str, float]] = []
        self._lock = Lock()
        self._process: subprocess.Popen[str] | None = None
        program = shutil.which("nvidia-smi")
        if program is None:
            return
        query = f"--query-gpu={','.join(_FIELDS)}"
        command = [program, query, "--format=csv,noheader,nounits", f"--loop-ms={_PERIOD_MS}", f"--id={name}"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        Thread(target=self._listen, args=(self._process.stdout or (),), daemon=True).start()

    def since_last(self) -> Mapping[str, float]:
        """Medians of the samples since the last call: `sm_mhz`, `power_w`; empty if there was none."""
        with self._lock:
            samples, self._samples = self._samples, []
        if not samples:
            return {}
        return {name: statistics.median(sample[name] for sample in samples) for name in _FIELDS.values()}

    def close(self) -> None:
        """End the process that samples."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def _listen(self, lines: Iterable[str]) -> None:
        for line in lines:
            sample = parse_sample(line)
            if sample:
                with self._lock:
                    self._samples.append(sample)


def parse_sample(line: str) -> Mapping[str, float]:
    """The values of a line such as "1755, 612.31"; empty if one of them is not told ("[N/A]")."""
    texts = [text.strip() for text in line.split(",")]
    try:
        return dict(zip(_FIELDS.values(), map(float, texts), strict=True))
    except ValueError:
        return {}
