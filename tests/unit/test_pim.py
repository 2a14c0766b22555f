"""Memory that computes: what configurations say, what encoding costs, and that runs and closed forms agree."""

import pytest

from weft import hardware
from weft.core.errors import ConfigError, InputError, UnknownNameError
from weft.estimate import pim as closed
from weft.hardware.pim import pim
from weft.kernels.pim import INSTRUCTION_SETS, STREAMING, encode, stream
from weft.simulate.pim import IDLE, meet

STILL = {"channel.rfc": "1 fs", "channel.refi": "0.9 s"}
every = pytest.mark.parametrize("name", ["hbm2", "hbm2-shared", "hbm3", "lpddr5x"])


@pytest.mark.parametrize(("name", "gain"), [("hbm2", 8), ("lpddr5x", 8), ("hbm2-shared", 4), ("hbm3", 8)])
def test_peak_gain_is_that_of_the_published_configuration(name, gain):
    assert pim(name).peak_gain == pytest.approx(gain, rel=1e-3)


@pytest.mark.parametrize(("name", "gain", "within"), [("hbm2", 6.6, 0.03), ("lpddr5x", 7.0, 0.02)])
def test_streaming_gain_with_one_opening_per_row_is_the_published_one(name, gain, within):
    assert closed.streaming_gain(pim(name)) == pytest.approx(gain, rel=within)


@every
def test_simulated_stream_gains_what_the_closed_form_says(name):
    still = pim(name).replace(STILL)
    met = meet(stream("reduction", 100 * still.words_per_row, still), still)
    assert met.gain == pytest.approx(closed.streaming_gain(still), rel=0.005)
    assert met.gain < still.peak_gain


def test_rows_that_open_four_at_a_time_cost_what_four_activates_in_a_window_cost():
    four = pim("hbm2").replace({"units.activate_banks": 4})
    assert closed.streaming_gain(four) == pytest.approx(5.0, rel=0.01)
    slower = four.replace({"channel.faw": "30 ns"})
    assert closed.streaming_gain(slower) == pytest.approx(4.15, rel=0.01)
    still = slower.replace(STILL)
    assert meet(stream("reduction", 3200, still), still).gain == pytest.approx(closed.streaming_gain(slower), rel=0.01)


@pytest.mark.parametrize(
    ("format", "instructions", "per_group"),
    [("mx9", "fused", 36.5), ("mx9", "simple", 85.5), ("mx6", "fused", 35), ("mx6", "simple", 84)],
)
@every
def test_commands_of_a_group_of_16_words_are_counted_by_hand(name, format, instructions, per_group):
    assert encode(320, pim(name), format, instructions).commands_per_word * 16 == per_group
    assert closed.commands_per_word(format, instructions) * 16 == per_group


def test_blocks_across_lanes_take_six_exchanges_each():
    on = pim("hbm2")
    more = encode(320, on, across=True).count() - encode(320, on).count()
    assert more == 6 * 8 * 320 / 16
    assert encode(320, on, across=True).commands_per_word == closed.commands_per_word(across=True)


@every
@pytest.mark.parametrize("instructions", INSTRUCTION_SETS)
@pytest.mark.parametrize("format", ["mx9", "mx6"])
def test_simulated_encoding_takes_what_the_closed_form_says(name, instructions, format):
    words, on = 8000, pim(name)
    met = meet(encode(words, on, format, instructions), on)
    assert met.pim_seconds == pytest.approx(closed.encode_seconds(words, on, format, instructions), rel=0.02)


def test_entering_the_mode_costs_writes_over_the_bus_and_nothing_where_there_is_no_mode():
    for name, writes in (("hbm2", 4 + 4 + 2), ("lpddr5x", 0)):
        on = pim(name)
        assert encode(320, on, modes=True).count() - encode(320, on).count() == writes
        assert meet(encode(320, on, modes=True), on).pim_seconds >= meet(encode(320, on), on).pim_seconds


@pytest.mark.parametrize("kernel", STREAMING)
def test_streaming_kernels_move_their_words_and_stay_below_the_peak(kernel):
    on = pim("hbm2")
    made = stream(kernel, 1000, on)
    assert made.count("read") == 1000 * STREAMING[kernel].reads
    assert made.count("write") == 1000 * STREAMING[kernel].writes
    assert 2 < meet(made, on).gain < on.peak_gain


def test_encoding_wins_over_the_host_where_the_facts_say_so():
    """PIM wins by 1.28 A / c: with simple instructions and a unit per two banks it loses."""
    for name, instructions, wins in (
        ("hbm2", "fused", True),
        ("hbm2", "simple", True),
        ("hbm2-shared", "simple", False),
    ):
        on = pim(name)
        bytes_ = 8000 * on.together * on.units.word_bytes
        host = closed.host_seconds(bytes_, on.channel.bandwidth) * closed.refreshing(on)
        assert (closed.encode_seconds(8000, on, "mx9", instructions) < host) is wins


def test_units_at_the_memory_of_a_gpu_take_its_rate_and_rows():
    on = pim("hbm3").on(hardware.gpu("mi300x"))
    assert on.channel.bandwidth == pytest.approx(5325e9 / 256)
    assert on.peak_gain == pytest.approx(8)
    assert pim("hbm2").on(hardware.gpu("mi210")).units.period == pytest.approx(2.5e-9, rel=1e-3)


def test_a_kernel_without_commands_beside_it_takes_no_time_of_them():
    on = pim("hbm2")
    assert meet(IDLE, on).seconds == meet(IDLE, on).pim_seconds == 0


def test_bad_input_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(UnknownNameError, match="hbm2"):
        pim("hbm5")
    with pytest.raises(UnknownNameError, match="instruction set"):
        encode(32, pim("hbm2"), instructions="none")
    with pytest.raises(UnknownNameError, match="streaming kernel"):
        stream("multiply", 32, pim("hbm2"))
    with pytest.raises(InputError, match="multiple of 16 words"):
        encode(33, pim("hbm2"))
    with pytest.raises(ConfigError, match="banks_per_unit"):
        pim("hbm2").replace({"units.banks_per_unit": 3})
    with pytest.raises(InputError, match="window"):
        meet(IDLE, pim("hbm2"), window=0)
    texts = 'name = "x"\ntitle = "x"\ndescription = "x"\n'
    text = f'{texts}[units]\nbanks_per_unit = {{ value = 1, kind = "published", source = "x" }}\n'
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"22 values are missing: units.word_bytes, .* all of \[channel\], \[modes\]"):
        pim(tmp_path / "x.toml")
