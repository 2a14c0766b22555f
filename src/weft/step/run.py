"""A whole training run: its steps, what failures and checkpoints cost of its time, and what it costs in money."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from weft.core.answer import Record, to_plain
from weft.core.errors import InputError, show_value
from weft.core.fields import Options, check_fields, declare
from weft.core.units import Dimension, parse

if TYPE_CHECKING:
    from weft.core.price import Price
    from weft.estimate.power import Energy
    from weft.step.result.step import Step

DAY = 86400.0
LLAMA_3 = 5.27e-4
"""Interruptions of a GPU each day: 466 in 54 days on 16,384 H100 (arXiv:2407.21783, section 3.3.4)."""
_CHECKPOINT_BYTES = 14
"""Bytes of each parameter in a checkpoint: weights of 16 bits, and weights and two moments in fp32."""
_STORAGE = 2e12 / 16384
"""Bandwidth of the storage for each GPU [bytes/s]: 2 TB/s sustained for 16,384 (arXiv:2407.21783, section 3.3.1)."""
_TOKENS = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_COVERED = 0.99
"""Share of the time for which spare nodes suffice."""
_GPUS_OF_NODE = 8


def tokens_of(text: str) -> float:
    """Return a number of tokens like "15T" or "300B"; InputError for another text.

    >>> tokens_of("300B")
    300000000000.0
    """
    number, unit = text.strip().rstrip("kMBGT"), text.strip()[-1:]
    try:
        found = float(number) * _TOKENS[unit if unit in _TOKENS else ""]
    except ValueError:
        found = 0.0
    if not 1 <= found < 1e21:
        raise InputError(f"{show_value(text)} is no number of tokens; write it like '15T' or '300B'")
    return found


@dataclass(frozen=True)
class TrainingRun(Options):
    """What a step does not say of the run that it is part of: how long it is, what GPUs cost, and how often they fail.

    Give `tokens` or `duration`. `failures` are interruptions of each GPU each day; `LLAMA_3` has those of its
    pre-training, other runs 2e-4 to 2e-3. After each the run starts again from the last checkpoint, which takes
    `restart`: detection, new nodes, loading, warm-up. A checkpoint is written at `checkpoint_bandwidth` by all GPUs
    together, while the step waits, or with `async_checkpoint` behind the next steps. `repair` is how long a failed node
    is away. Quantities are texts with a unit. Raises InputError for what is no such quantity.
    """

    tokens: str | None = declare(
        None, "Tokens of the training run, like 15T: its days, and with --price its cost.", unit="tokens"
    )
    duration: str | None = declare(None, "Length of the training run in place of its tokens, like 30d.")
    energy: str | None = declare(
        None,
        "State power and energy: of gpus alone, or with what counts beside them, like '300 W/GPU, PUE 1.2, 0.1 "
        "USD/kWh'.",
    )
    price: str | None = declare(None, "What a GPU costs, like '3.5 USD/GPU/h', or a TOML file of prices by GPU.")
    failures: float | None = declare(
        None,
        f"Interruptions of each GPU each day, such as {LLAMA_3:g} (Llama 3; others 2e-4 to 2e-3): goodput, and how "
        "often to write a checkpoint.",
        default="none",
        bounds=(0.0, 1.0),
    )
    restart: str = declare("10min", "Time from an interruption to the next step [assumed, 3 to 20 min].")
    checkpoint_bandwidth: str | None = declare(
        None, "Bandwidth of the storage for checkpoints, all GPUs together.", default="Llama 3's 122 MB/s for each GPU"
    )
    async_checkpoint: bool = declare(
        False, "Write checkpoints behind the next steps, which wait for the copy to the host."
    )
    checkpoint_every: str | None = declare(None, "Time between checkpoints, like 30min.", default="what loses least")
    repair: str = declare("24h", "How long a failed node is away [assumed, 4 to 72 h]: how many spare nodes suffice.")

    def __post_init__(self) -> None:
        check_fields(self)
        asks = self.price or self.energy or self.failures is not None
        if bool(self.tokens) == bool(self.duration) and (self.tokens or not asks):
            raise InputError("a run has tokens or a duration, one of both; give tokens 15T, or duration 30d")
        if self.tokens:
            tokens_of(self.tokens)
        for name in ("duration", "restart", "checkpoint_every", "repair"):
            if (text := getattr(self, name)) and parse(text, Dimension.SECONDS) <= 0:
                raise InputError(f"{name} {show_value(text)} must be above zero")
        if self.checkpoint_bandwidth and parse(self.checkpoint_bandwidth, Dimension.BYTES_PER_SECOND) <= 0:
            raise InputError(f"checkpoint_bandwidth {show_value(self.checkpoint_bandwidth)} must be above zero")
        if self.failures is None and (self.checkpoint_every or self.checkpoint_bandwidth or self.async_checkpoint):
            raise InputError("checkpoints are written for failures, and none is stated; give failures, like 5.3e-4")

    def seconds(self, name: str) -> float:
        """Return a stated time [s]."""
        return parse(getattr(self, name), Dimension.SECONDS)


@dataclass(frozen=True)
class Goodput:
    """What failures and checkpoints cost of a run's time.

    `interval_s` lies between two checkpoints of `checkpoint_bytes`, each of which takes `write_s` and stops the steps
    for `blocked_s`; a failure comes every `mtbf_s` on average. `goodput` is the share of the time in which steps are
    done that count; `written`, `restarted` and `repeated` are what is lost to each. `spares` nodes cover those that are
    away.
    """

    mtbf_s: float
    checkpoint_bytes: float
    write_s: float
    blocked_s: float
    interval_s: float
    goodput: float
    written: float
    restarted: float
    repeated: float
    spares: int


@dataclass(frozen=True)
class RunOutcome(Record):
    """What a run takes and costs: `days` of a run of `tokens`, with both ends of the 80 % interval of its step.

    `price` is None where none was stated, `goodput` where no failures were, `energy` where it was not asked for.
    """

    tokens: float | None
    days: float | None
    days_80: tuple[float, float] | None
    gpus: int
    tokens_per_s: float
    interval: tuple[float, float]
    price: Price | None = None
    goodput: Goodput | None = None
    energy: Energy | None = None

    @property
    def useful(self) -> float:
        """Share of the time in which steps are done that count."""
        return self.goodput.goodput if self.goodput else 1.0

    @property
    def million_tokens(self) -> float:
        """Price of a million tokens, failures included; InputError without a price."""
        if self.price is None:
            raise InputError("no price was stated; give one, like '3.5 USD/GPU/h'")
        return self.price.of_tokens(self.gpus, self.tokens_per_s * self.useful)

    @property
    def cost(self) -> float | None:
        """Price of the whole run; None without its length or a price."""
        if self.price is None or self.days is None:
            return None
        return self.price.amount * self.gpus * self.days * DAY

    def to_dict(self) -> dict[str, Any]:
        """Return days, cost, goodput and checkpoints as plain data."""
        price = self.price
        return to_plain(
            tokens=self.tokens, days=self.days, days_80=self.days_80, currency=price and price.currency,
            cost=self.cost, cost_of_million_tokens=price and self.million_tokens, goodput=self.goodput,
            energy=self.energy,
        )  # fmt: skip


def _price(text: str, gpu: str) -> Price:
    from weft.core.price import Price

    return Price.of(text, gpu)


def outcome(step: Step, run: TrainingRun) -> RunOutcome:
    """Return what a run of a step takes and costs."""
    gpus, rate = step.plan.gpus, step.tokens / step.seconds
    price = _price(run.price, step.system.gpu.name) if run.price else None
    lost = None if run.failures is None else goodput(step, run)
    useful = lost.goodput if lost else 1.0
    ends = (step.interval_s[0] / step.seconds, step.interval_s[1] / step.seconds)
    tokens = tokens_of(run.tokens) if run.tokens else None
    days = tokens / rate / useful / DAY if tokens else None
    if run.duration:
        days = run.seconds("duration") / DAY
        tokens = rate * useful * days * DAY
    between = (days * ends[0], days * ends[1]) if days is not None and run.tokens else None
    drawn = _energy(step, run.energy, days, useful) if run.energy else None
    return RunOutcome(tokens, days, between, gpus, rate, ends, price, lost, drawn)


def _energy(step: Step, terms: str, days: float | None, useful: float) -> Energy:
    """Return the energy of a run: that of lost steps counts, and power flows while it restarts."""
    from weft.core.energy import EnergyTerms
    from weft.step.energy import energy

    found = energy(step, EnergyTerms.of(terms), days)
    return replace(found, tokens_per_s=found.tokens_per_s * useful)


def goodput(step: Step, run: TrainingRun) -> Goodput:
    """Return what failures cost, with the interval between checkpoints that loses least unless one is stated.

    Failures come at a constant rate; of an interval that fails, all is lost (J. T. Daly, A higher order estimate of the
    optimum checkpoint interval for restart dumps, 2006, equation 13).
    """
    gpus, failures = step.plan.gpus, run.failures or 0.0
    size = float(_CHECKPOINT_BYTES * step.model.parameters)
    rate = _STORAGE * gpus
    if run.checkpoint_bandwidth:
        rate = parse(run.checkpoint_bandwidth, Dimension.BYTES_PER_SECOND)
    write = size / rate
    blocked = size / gpus / step.system.gpu.host.bandwidth if run.async_checkpoint else write
    if not failures:
        return Goodput(math.inf, size, write, blocked, math.inf, 1.0, 0.0, 0.0, 0.0, 0)
    mtbf, restart = DAY / (failures * gpus), run.seconds("restart")
    late = write - blocked if run.async_checkpoint else 0.0  # what was done while a checkpoint was written is lost, too
    least = write if run.async_checkpoint else 0.0

    def wall(work: float) -> float:
        return mtbf * math.exp((restart + late) / mtbf) * math.expm1((work + blocked) / mtbf)

    interval = run.seconds("checkpoint_every") if run.checkpoint_every else _best_interval(wall, mtbf, blocked, least)
    took = wall(interval)
    useful, written, restarted = interval / took, blocked / took, restart / mtbf
    repeated = max(1 - useful - written - restarted, 0.0)
    nodes = math.ceil(gpus / _GPUS_OF_NODE)
    away = failures * gpus * run.seconds("repair") / DAY
    return Goodput(
        mtbf, size, write, blocked, interval, useful, written, restarted, repeated, min(_spares(away), nodes)
    )


def _best_interval(wall: Callable[[float], float], mtbf: float, blocked: float, least: float) -> float:
    """Return the time between checkpoints of which the largest share counts [s], by golden section in its logarithm."""
    low, high = math.log(max(least, 1e-3)), math.log(max(20 * mtbf, 2 * least, 1.0))
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(80):
        one, other = high - ratio * (high - low), low + ratio * (high - low)
        if _share(wall, one) > _share(wall, other):
            high = other
        else:
            low = one
    return math.exp((low + high) / 2)


def _share(wall: Callable[[float], float], log_work: float) -> float:
    try:
        return math.exp(log_work) / wall(math.exp(log_work))
    except OverflowError:
        return 0.0


def _spares(away: float) -> int:
    """Return the fewest spare nodes that cover those away, `away` on average, for `_COVERED` of the time (Poisson)."""
    term = total = math.exp(-away) if away < 700 else 0.0
    if not term:
        return math.ceil(away + 2.33 * math.sqrt(away))
    count = 0
    while total < _COVERED:
        count += 1
        term *= away / count
        total += term
    return count
