"""The DRAM of the catalogue in the engine: reads have their measured share, copies should come out as measured."""

import pytest

import weft
from weft.cli import main as cli
from weft.models import SubLayer
from weft.models.parallel import split

# Nothing but DRAM slows an all-gather over such links, with no cache beside it.
FREE = {
    "link.bandwidth": "100 TB/s",
    "host.bandwidth": "100 TB/s",
    "link.latency": "1 ns",
    "memory_cache.capacity": "0 B",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a100-sxm-80gb", "h100-sxm", "l40s", "mi100", "mi210", "mi300x"])
def test_timings_and_channels_give_about_the_copy_bandwidth_that_others_measured(name):
    gpu = weft.gpu(name)
    layer = split(SubLayer.custom(m=4096, n=8192, k=256, name="copy"), tp=2)
    result = weft.simulate(layer, gpu.replace(FREE), "sequential", weft.RunOptions(request_bytes=64))
    # Half of the output is read, half is written.
    copied = layer["all_reduce"].op.bytes / result.duration("all_gather")
    assert copied / gpu.memory.bandwidth == pytest.approx(gpu.memory.copy_efficiency, rel=0.12)


IMPOSSIBLE = {
    "memory.timing.rc": ("40 ns", "rc (40 ns) must be at least ras (33 ns) + rp (14 ns)"),
    "memory.timing.rfc": ("260 ns", "refi (0 s) and rfc (260 ns) need each other"),
    "memory.queue_entries": ("1", "queue_entries (1) of 32 B cannot hold one request of 64 B"),
    "memory.refresh_banks": ("3", "banks (16) must be a multiple of refresh_banks (3)"),
}


def refusal(capsys, *options):
    with pytest.raises(SystemExit) as left:
        cli.main(["simulate", "sublayer", "--gemm", "1024,1024,1024", "--tp", "4", *options])
    assert left.value.code != 0
    return capsys.readouterr().err


@pytest.mark.parametrize("path", IMPOSSIBLE)
def test_an_impossible_memory_is_refused_in_one_sentence_from_a_file_and_from_the_command_line(path, tmp_path, capsys):
    value, sentence = IMPOSSIBLE[path]
    part, _, name = path.rpartition(".")
    file = tmp_path / "mine.toml"
    written = value if value.isdigit() else repr(value)
    file.write_text(f'extends = "t3-paper"\nname = "mine"\n[{part}]\n{name} = {written}\n')
    for error in (refusal(capsys, "--gpu", str(file)), refusal(capsys, "--set", f"{path}={value}")):
        assert sentence in error
        assert error.count("\n") == 1
