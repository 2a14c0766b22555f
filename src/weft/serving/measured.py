"""What a measured server says beside the simulated one: whether it was to be expected, and where to look."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from weft.core.errors import InputError
from weft.core.units import Dimension, format_time, parse

if TYPE_CHECKING:
    from weft.serving.result import Serving

_FORM = re.compile(r"\s*(?:(mean|median|p50|p90|p99)\s+)?(?:(TTFT|TPOT|ITL)\s+)?([\d.,]+)\s*(\S.*?)\s*", re.IGNORECASE)
_RATES = {
    "req/s": (0, 0, False),
    "output tokens/s": (0, 1, False),
    "output tokens/s/gpu": (0, 1, True),
    "total tokens/s": (1, 1, False),
    "total tokens/s/gpu": (1, 1, True),
}
"""Rates by name: whether the tokens of prompts and of answers count (neither: requests), and whether per GPU."""
_HOW = (
    "write it like 'TPOT 31.4 ms', 'p99 TTFT 850 ms', '6.17 req/s', '2008 output tokens/s', '4100 total tokens/s' "
    "(with those of prompts), or rates of tokens with '/GPU'"
)
_EXPECTED = 0.2
"""Share within which a figure without an 80 % interval is called expected [assumed, 0.1 to 0.3: public TTFTs of up to 4
clients are 15 % off on average]."""


@dataclass(frozen=True)
class MeasuredFigure:
    """One figure of a measured server: a `statistic` of a latency [s], or a rate [1/s] by its name in `what`."""

    what: str
    value: float
    statistic: str = "mean"

    @classmethod
    def of(cls, text: str) -> MeasuredFigure:
        """Parse "TPOT 31.4 ms", "p99 TTFT 850 ms", "6.17 req/s" or "2008 output tokens/s"; InputError for another text.

        >>> MeasuredFigure.of("median TPOT 31.4 ms")
        MeasuredFigure(what='TPOT', value=0.0314, statistic='p50')
        """
        found = _FORM.fullmatch(text)
        if found is None or not re.fullmatch(r"\d+\.?\d*|\.\d+", found[3].replace(",", "")):
            raise InputError(f"'{text}' is no figure of a server; {_HOW}")
        statistic, latency, number, unit = found.groups()
        value = float(number.replace(",", ""))
        if latency:
            value = parse(f"{value} {unit}", Dimension.SECONDS)
        elif unit.lower() not in _RATES or statistic:
            raise InputError(f"'{text}' is no figure of a server; {_HOW}")
        if not 0 < value < 1e30:
            raise InputError(f"'{text}' is not above zero; give what was measured")
        names = {"median": "p50", None: "mean"}
        named = statistic.lower() if statistic else None
        what = "TPOT" if latency and latency.upper() == "ITL" else latency.upper() if latency else unit.lower()
        return cls(what, value, names.get(named, named or "mean"))

    @property
    def is_latency(self) -> bool:
        """Whether longer is worse."""
        return self.what not in _RATES

    def predicted(self, served: Serving) -> float:
        """Return the same figure of a simulated load; InputError for a latency above capacity."""
        if self.is_latency:
            latencies = served.ttft if self.what == "TTFT" else served.tpot
            if latencies is None:
                raise InputError(
                    f"{self.what} has no predicted value here: the load is above capacity, or of one token"
                )
            return latencies[self.statistic]
        prompts, answers, each = _RATES[self.what]
        rate = prompts * served.input_tokens_per_s + answers * served.output_tokens_per_s or served.requests_per_s
        return rate / served.gpus if each else rate

    def interval(self, served: Serving) -> tuple[float, float] | None:
        """Return the 80 % interval of the predicted figure; None where no row is public, or arrivals decide a rate."""
        value, error = self.predicted(served), served.error
        if error is None or self.what == "TTFT":
            return None
        if self.is_latency:
            return error.around(value)
        return None if served.output_tokens_per_s_interval is None else (value / error.high, value / error.low)

    def words(self, value: float) -> str:
        """Return a value of the figure with its unit."""
        if self.is_latency:
            return format_time(value, 3)
        return f"{value:,.3g} {self.what}" if value < 1000 else f"{value:,.0f} {self.what}"


def judge_served(served: Serving, measured: tuple[str, ...]) -> Serving:
    """Return the load with sentences on measured figures: whether each lies in its 80 % interval, and where to look."""
    figures = [MeasuredFigure.of(text) for text in measured]
    off = {one.what: _beyond(one, served) for one in figures}
    said = [_verdict(one, served) for one in figures]
    return replace(served, needs=(*served.needs, *said, *_advice(served, {one.what: one for one in figures}, off)))


def _beyond(one: MeasuredFigure, served: Serving) -> int:
    """Return 1 where the measured server is slower than is to be expected, -1 where it is faster, else 0."""
    value, expected = one.predicted(served), one.interval(served)
    low, high = expected or (value / (1 + _EXPECTED), value * (1 + _EXPECTED))
    place = (one.value > high) - (one.value < low)
    return place if one.is_latency else -place


def _verdict(one: MeasuredFigure, served: Serving) -> str:
    value, expected, beyond = one.predicted(served), one.interval(served), _beyond(one, served)
    share = one.value / value - 1
    more, less = ("longer", "shorter") if one.is_latency else ("more", "less")
    name = f"{'' if one.statistic == 'mean' else one.statistic + ' '}{one.what} of " if one.is_latency else ""
    lead = f"Measured {name}{one.words(one.value)}: {abs(share):.0%} {more if share > 0 else less} than predicted"
    where = "the 80 % interval" if expected else f"{_EXPECTED:.0%}, without a stated interval"
    if not beyond:
        return f"{lead}, within {where}: as is to be expected."
    judged = "slower than it should be" if beyond > 0 else "check what was measured, and how this load differs"
    return f"{lead}, outside {where}: {judged}."


def _advice(served: Serving, figures: dict[str, MeasuredFigure], off: dict[str, int]) -> list[str]:
    """Return where to look, from the figures that are slower than is to be expected."""
    found = []
    tokens = next((one for name, one in figures.items() if name.startswith("output")), None)
    tpot, ttft = figures.get("TPOT"), figures.get("TTFT")
    if tpot and off["TPOT"] > 0:
        extra = tpot.value - tpot.predicted(served)
        host = served.iteration_parts.get("host", 0.0)
        parts = sorted(served.iteration_parts.items(), key=lambda part: -part[1])[:3]
        most = ", ".join(f"{name} {format_time(seconds, 3)}" for name, seconds in parts)
        found.append(
            f"An iteration takes {format_time(extra, 3)} more than predicted. If all of that is CPU time, simulate it "
            f"by --cpu-overhead {format_time(host + extra, 3).replace(' ', '')} ({format_time(host, 3)} here), one "
            f"without CUDA graphs by --enforce-eager; the largest parts here: {most}."
        )
    if ttft and off["TTFT"] > 0 and (tpot is None or off["TPOT"] <= 0):
        found.append(
            "TTFT alone is long: look at the queue (--max-num-seqs, --max-num-batched-tokens), and at tokenizing and "
            f"HTTP in front of the engine; here {format_time(served.parts['queue'], 3)} queue, "
            f"{format_time(served.parts['prefill'], 3)} prefill, {format_time(served.parts['outside'], 3)} outside."
        )
    if tokens and tpot and off[tokens.what] > 0 and off["TPOT"] <= 0:
        rate = tokens.value * (served.gpus if tokens.what.endswith("gpu") else 1)
        running = served.mean_running * served.replicas
        found.append(
            f"Iterations are as fast as predicted, but {rate * tpot.value:,.0f} requests decode at once (throughput x "
            f"TPOT) where {running:,.0f} run here: look at the clients' rate, --max-num-seqs, and preemptions."
        )
    return found
