import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from weft import hardware
from weft.core.errors import InputError, SystemNamedError, UnknownNameError
from weft.hardware import System, resolve
from weft.overlaps.lower.machine import ring_link

# Names


@pytest.mark.parametrize("name", hardware.gpu_names())
def test_every_gpu_is_found_by_name_title_and_alias(name):
    gpu = hardware.gpu(name)
    for text in (gpu.name, gpu.name.upper().replace("-", "_"), gpu.title, *gpu.aliases):
        assert hardware.gpu(text) == gpu


def test_no_name_means_two_machines():
    gpus = [hardware.gpu(name) for name in hardware.gpu_names()]
    for described in (gpus, hardware.known_nodes()):
        every = [text for one in described for text in {one.name, *one.aliases}]
        assert len(every) == len(set(every))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("A100-80GB-PCIe", "a100-pcie-80gb"),
        ("A100", "a100-sxm-80gb"),
        ("H100-SXM 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("H800-SXM5", "h800"),
        ("NVIDIA H200", "h200-sxm"),
        ("b200_sxm", "b200"),
        ("GB200", "gb200"),
        ("GB300", "gb300"),
        ("A100-SXM4-40GB", "a100-sxm-40gb"),
        ("H100-SXM-96GB-HBM2e", "h100-sxm-96gb"),
        ("NVIDIA L40S", "l40s"),
        ("gfx90a-104cu", "mi210"),
        ("gfx90a", "mi250x-gcd"),
        ("MI200-GCD", "mi250x-gcd"),
        ("AMD Instinct MI300X", "mi300x"),
        ("gfx942-80cu", "mi308x"),
    ],
)
def test_gpus_are_found_by_what_vendors_and_measurements_call_them(text, name):
    assert hardware.gpu(text).name == name


@pytest.mark.parametrize("text", ["A100-SXM4-64GB", "H100 PCIe", "L20", "P40", ""])
def test_another_gpu_is_not_taken_for_a_known_one(text):
    with pytest.raises(UnknownNameError, match="unknown GPU"):
        hardware.gpu(text)


@pytest.mark.parametrize(
    ("text", "name", "gpus", "nodes"),
    [
        ("dgx-h100", "dgx-h100", 8, 1),
        ("NVIDIA DGX H100", "dgx-h100", 8, 1),
        ("2x dgx-h100", "dgx-h100", 16, 2),
        ("A100", "dgx-a100", 8, 1),
        ("8xA100-SXM4-80GB", "dgx-a100", 8, 1),
        ("2xH100-SXM 80GB HBM3", "dgx-h100", 2, 1),
        ("4xH100-SXM (DGX, 1 node)", "dgx-h100", 4, 1),
        ("2xA100-SXM (DGX, 2 nodes)", "dgx-a100", 2, 2),
        ("16xA100-80GB (2x p4de.24xlarge, EFA)", "p4de", 16, 2),
        ("16xH100 (2x p5.48xlarge, EFA)", "p5", 16, 2),
        ("16xH100 (2 nodes)", "dgx-h100", 16, 2),
        ("16xA100-80GB (NDm A100 v4)", "ndm-a100-v4", 16, 2),
        ("8xH100 (ND H100 v5)", "nd-h100-v5", 8, 1),
        ("8xH100 DGX", "dgx-h100", 8, 1),
        ("256xH100", "dgx-h100", 256, 32),
        ("8xA800-SXM", "hgx-a800", 8, 1),
        ("16xH800-SXM5 (2 nodes)", "hgx-h800", 16, 2),
        ("8xA100-80GB-PCIe", "pcie-a100", 8, 1),
        ("8xA100-80GB (PCIe)", "pcie-a100", 8, 1),
        ("4xA100 (HGX A100 4)", "hgx-a100-4", 4, 1),
        ("8xb200_sxm", "hgx-b200", 8, 1),
        ("8xB300", "hgx-b300", 8, 1),
        ("72xGB200 NVL72", "gb200-nvl72", 72, 1),
        ("2x gb200-nvl72", "gb200-nvl72", 144, 2),
        ("4xgb200", "gb200-nvl72", 4, 1),
        ("4xMI200-GCD", "mi250x-x8", 4, 1),
        ("16xMI200-GCD", "mi250x-x16", 16, 1),
        ("16 GCDs of MI250X", "mi250x-x16", 16, 1),
        ("32 GCDs of MI250X (4 nodes, Slingshot 11)", "mi250x-x8", 32, 4),
        ("8xMI300X", "mi300x-x8", 8, 1),
        ("H100 (count not stated)", "dgx-h100", 8, 1),
    ],
)
def test_systems_are_found_by_what_measurements_call_them(text, name, gpus, nodes):
    found = hardware.system(text)
    assert (found.name, found.gpus, found.nodes) == (name, gpus, nodes)
    assert found.gpus_per_node == gpus // nodes


@pytest.mark.parametrize(
    "text",
    [
        "8xL20 (PCIe)",
        "8xP40",
        "16 AMD GPUs (2 nodes)",
        "4x Blackwell",
        "not stated",
        "",
        "dgx-h10",
    ],
)
def test_an_unknown_system_lists_the_known_ones(text):
    with pytest.raises(UnknownNameError, match=r"unknown system .*are known, from 'dgx-1'"):
        hardware.system(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [("13xH100 (2 nodes)", "spread evenly over 2 nodes"), ("32xH100 (2 nodes)", "at least 4 nodes")],
)
def test_gpus_that_do_not_fit_are_refused(text, words):
    with pytest.raises(InputError, match=words):
        hardware.system(text)


def test_a_match_takes_another_number_of_ranks():
    found = hardware.system("dgx-h100")
    assert (found.with_gpus(4).nodes, found.with_gpus(32).nodes, found.with_gpus(4, 2).gpus_per_node) == (
        1,
        4,
        2,
    )


# Machines


@pytest.mark.parametrize("machine", hardware.known_nodes(), ids=lambda node: node.name)
def test_every_node_is_whole_and_says_where_its_values_come_from(machine):
    name = machine.name
    assert name in hardware.node_names()
    assert machine.title
    assert {"gpus_per_node", "topology", "network.bandwidth", "network.latency"} <= set(machine.provenance)
    assert all(found.source for found in machine.provenance.values())
    found = hardware.system(name)
    assert (found.gpus, found.nodes, found.gpu) == (machine.gpus_per_node, 1, machine.gpu)


@pytest.mark.parametrize("name", [name for name in hardware.gpu_names() if name != "t3-paper"])
def test_every_real_gpu_has_a_usual_machine(name):
    assert hardware.system(f"2x{name}").gpu.name == name


@pytest.mark.parametrize("name", hardware.node_names())
def test_no_gpu_has_more_links_than_its_data_sheet(name):
    machine = hardware.system(name).node
    for rank in range(machine.gpus_per_node):
        joined = sum(
            machine.links_between(rank, other) for other in range(machine.gpus_per_node) if machine.topology != "switch"
        )
        assert joined <= machine.gpu.link.links


@pytest.mark.parametrize(
    ("name", "gpus", "gigabytes"),
    [
        ("dgx-a100", 2, 300),
        ("hgx-a100-4", 2, 100),
        ("hgx-a100-4", 4, 300),
        ("hgx-h800", 8, 200),
        ("mi300x-x8", 2, 64),
        ("mi300x-x8", 8, 448),
        ("mi210-x4", 4, 150),
        ("mi250x-x8", 2, 200),
        ("mi250x-x8", 4, 100),
        ("mi250x-x8", 8, 200),
        ("pcie-a100", 2, 300),
        ("pcie-a100", 8, 31.5),
        ("pcie-l40s", 8, 31.5),
    ],
)
def test_what_gpus_can_send_each_other_follows_the_topology(name, gpus, gigabytes):
    machine = hardware.system(name, gpus)
    assert machine.node.bandwidth_among(gpus) == pytest.approx(gigabytes * 1e9)
    reached = machine.node.bandwidth_among(gpus) * machine.node.path_share(gpus)
    assert ring_link(machine).bandwidth == reached
    assert machine.node.path_share(gpus) == (0.6 if gigabytes == 31.5 else 1)
    assert machine.gpus == gpus


@pytest.mark.parametrize("gpus", [1, 9])
def test_a_node_has_so_many_gpus_and_no_more(gpus):
    with pytest.raises(InputError, match=r"dgx-a100 has 8 GPUs in a node"):
        hardware.system("dgx-a100").node.bandwidth_among(gpus)


def test_a_calibrated_gpu_goes_into_a_machine():
    machine = hardware.system("dgx-h100")
    slower = machine.gpu.replace({"clocks.sustained": "1.4 GHz"})
    assert machine.with_gpu(slower).gpu == slower


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu = 'h100-sxm'", ["title", "missing"]),
        ("extends = 'dgx-h100'\ngpu = 'h1000'", ["unknown GPU", "h100-sxm"]),
        ("extends = 'dgx-h100'\ngpus = 8", ["unknown key", "gpus_per_node"]),
        ("extends = 'dgx-h100'\n[network]\nbandwidth = 50", ["network.bandwidth", "no unit"]),
        ("extends = 'dgx-h100'\ntopology = 'star'", ["topology", "'star'", "'switch'"]),
        ("extends = 'dgx-h100'\ntopology = 'mesh'", ["links_per_pair must be at least 1"]),
        ("extends = 'dgx-h100'\ntopology = 'hybrid'", ["edges must list"]),
        ("extends = 'mi250x-x8'\nedges = [[0, 8, 1]]", ["[0, 8, 1]", "from 0 to 7"]),
        ("extends = 'mi250x-x8'\nedges = [[0, 1]]", ["edges"]),
        ("extends = 'dgx-h100'\nusual = 'yes'", ["usual", "'yes'", "true or false"]),
        ("extends = 'dgx-h100'\naliases = 'x'", ["aliases", "list of names"]),
        ("extends = 'dgx'", ["unknown system 'dgx'"]),
    ],
)
def test_a_machine_file_that_breaks_a_rule_is_refused_in_one_sentence(tmp_path, text, words):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        hardware.system(file)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_a_machine_file_may_name_a_gpu_file_beside_it(tmp_path):
    (tmp_path / "fast.toml").write_text("extends = 'h100-sxm'\n[link]\nbandwidth = '600 GB/s'\n")
    (tmp_path / "mine.toml").write_text("extends = 'dgx-h100'\ngpu = 'fast.toml'\ngpus_per_node = 4\n")
    found = hardware.system(str(tmp_path / "mine.toml"))
    assert (found.name, found.gpus, found.gpu.link.bandwidth) == ("mine", 4, 600e9)


# Data sheets

PEAKS = {
    "a100-sxm-80gb": {"fp64": 19.5, "fp32": 19.5, "tf32": 156, "bf16": 312, "int8": 624},
    "a100-pcie-80gb": {"fp64": 19.5, "fp32": 19.5, "tf32": 156, "fp16": 312},
    "h100-sxm": {"fp64": 66.9, "fp32": 66.9, "tf32": 494.7, "bf16": 989.4, "fp8": 1978.9, "int8": 1978.9},
    "h800": {"fp64": 1, "bf16": 989.4},
    "h200-sxm": {"bf16": 989.4, "fp8": 1978.9},
    "b200": {"fp64": 37, "fp32": 75, "tf32": 1125, "bf16": 2250, "fp8": 4500},
    "b300": {"fp32": 75, "tf32": 1125, "bf16": 2250, "fp8": 4500},
    "gb200": {"fp64": 40, "fp32": 80, "tf32": 1250, "bf16": 2500, "fp8": 5000},
    "p100-pcie-16gb": {"fp64": 4.7, "fp32": 9.34, "fp16": 18.7},
    "v100-sxm2-32gb": {"fp64": 7.8, "fp32": 15.7, "fp16": 125.3},
    "t4": {"fp32": 8.1, "fp16": 65, "int8": 130},
    "vega-fe": {"fp32": 13.1, "fp16": 26.2},
    "mi25": {"fp32": 12.3, "fp16": 24.6},
    "l40s": {"fp32": 91.6, "tf32": 183, "bf16": 366, "fp8": 733, "int8": 733},
    "mi100": {"fp64": 11.5, "fp32": 46.1, "fp16": 184.6, "bf16": 92.3},
    "mi210": {"fp64": 45.3, "fp32": 45.3, "fp16": 181, "bf16": 181, "int8": 181},
    "mi250x-gcd": {"fp64": 47.9, "fp32": 47.9, "fp16": 191.5},
    "mi300x": {"fp64": 163.4, "fp32": 163.4, "tf32": 653.7, "bf16": 1307.4, "fp8": 2614.9},
    "mi308x": {"bf16": 344.1, "fp8": 688.1},
    "mi325x": {"bf16": 1307.4, "fp8": 2614.9},
    "mi355x": {"fp64": 78.6, "fp32": 157.3, "bf16": 2516.6, "fp8": 5033.2},
}  # [TFLOP/s]


@pytest.mark.parametrize("name", PEAKS)
def test_units_times_rate_times_clock_give_the_data_sheets_peak(name):
    gpu = hardware.gpu(name)
    for dtype, peak in PEAKS[name].items():
        tolerance = 0.05 if (name, dtype) == ("h800", "fp64") else 0.01
        assert gpu.matrix_rate(dtype) == pytest.approx(peak * 1e12, rel=tolerance), dtype
        assert gpu.matrix_rate(dtype, "sustained") <= gpu.matrix_rate(dtype, "boost")


@pytest.mark.parametrize("name", [name for name in hardware.gpu_names() if name != "t3-paper"])
def test_memory_caches_and_links_of_a_real_gpu_belong_together(name):
    gpu = hardware.gpu(name)
    assert 0.71e9 < gpu.memory.clock < 2.7e9
    assert gpu.memory.copy_efficiency <= 1.05 * gpu.memory.read_efficiency
    assert gpu.cache.far_latency >= gpu.cache.latency
    assert gpu.cache.capacity % (gpu.cache.ways * gpu.memory.interleave) == 0
    assert gpu.cache.bandwidth > gpu.memory.bandwidth
    assert max(gpu.clocks.sustained, gpu.clocks.matrix_peak) <= gpu.compute.clock
    assert gpu.launch.graph <= gpu.compute.launch_latency <= gpu.launch.sync
    assert bool(gpu.memory_cache.capacity) == gpu.architecture.startswith(("cdna3", "cdna4"))


def test_an_unsupported_data_type_names_the_supported_ones():
    gpu = hardware.gpu("mi210")
    assert gpu.supports("bf16")
    assert not gpu.supports("fp8")
    assert not gpu.supports("name")
    with pytest.raises(InputError, match=r"mi210 has no matrix rate for 'fp8'; it has fp64, fp32, fp16, bf16, int8"):
        gpu.matrix_rate("fp8")


@pytest.mark.parametrize("text", ["dgx-h100", "8xH100"])
def test_a_system_where_a_gpu_is_wanted_says_which_gpu_it_has(text):
    with pytest.raises(SystemNamedError, match=f"'{text}' is a system, not a GPU; its GPU is h100-sxm") as caught:
        hardware.gpu(text)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(UnknownNameError, match="unknown GPU 'h10'"):
        hardware.gpu("h10")


# Systems by path


def test_a_system_moves_values_of_its_gpu_its_node_and_its_library():
    system = hardware.system("16xH100 (2 nodes)")
    moved = system.replace(
        {"link.bandwidth": "300 GB/s", "network.latency": "3 us", "library.simple.in_flight": "8 KiB"}
    )
    assert (moved.gpu.link.bandwidth, moved.node.gpu.link.bandwidth) == (300e9, 300e9)
    assert (moved.node.network.latency, moved.library.simple.in_flight) == (3e-6, 8192)
    assert (moved.gpus, moved.nodes, moved.name) == (16, 2, "dgx-h100")
    assert moved.text("library.simple.in_flight") == "8 KiB"
    assert moved.value("network.latency") == 3e-6
    assert moved.changes == (
        "link.bandwidth = 300 GB/s", "network.latency = 3 us", "library.simple.in_flight = 8 KiB"
    )  # fmt: skip
    assert pickle.loads(pickle.dumps(moved)) == moved != system
    assert len({moved, system, hardware.system("16xH100 (2 nodes)")}) == 2


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("network.latncy", ["unknown key", "'network.latency'"]),
        ("library.simple.inflight", ["unknown key", "'library.simple.in_flight'"]),
        ("library.pairs", ["no unit"]),
        ("network", ["is a table", "'network.bandwidth'"]),
    ],
)
def test_a_path_that_a_system_does_not_have_names_the_nearest(path, words):
    with pytest.raises(InputError) as caught:
        hardware.system("dgx-h100").replace({path: 3})
    for word in words:
        assert word in str(caught.value)


def test_a_system_without_a_node_has_no_values_of_one():
    with pytest.raises(InputError, match=r"network.latency: unknown key"):
        hardware.system("t3-paper").value("network.latency")


def test_a_system_file_may_describe_a_gpu_or_a_node(tmp_path):
    (tmp_path / "gpu.toml").write_text("extends = 'h100-sxm'\nname = 'h100-sxm'\n")
    (tmp_path / "node.toml").write_text("extends = 'dgx-h100'\ngpus_per_node = 4\n")
    assert hardware.system(tmp_path / "gpu.toml", 16).nodes == 2
    assert hardware.system(tmp_path / "node.toml", 16).nodes == 4
    with pytest.raises(SystemNamedError, match="its GPU is h100-sxm"):
        hardware.gpu(tmp_path / "node.toml")


def test_what_is_a_description_already_is_its_own_answer():
    system = hardware.system("dgx-h100")
    assert hardware.system(system) is system
    assert hardware.gpu(system.gpu) is system.gpu
    assert hardware.system(system.node) == system
    with pytest.raises(InputError, match="8 GPUs that differ, but 4 are asked for"):
        hardware.system(System(node=system.node, gpus=8, start={1: 1e-6}), 4)


def test_a_kernel_that_the_library_lacks_has_no_values():
    system = hardware.system("dgx-h100")
    with pytest.raises(InputError, match=r"direct_ll\.start: hopper has no such value"):
        system.value("library.direct_ll.start")
    with pytest.raises(InputError, match=r"direct_ll\.sync: this value is missing"):
        system.replace({"library.direct_ll.start": "1 us"})


def test_the_index_of_names_is_that_of_the_files():
    held = json.loads((Path(resolve.__file__).parent / "catalog" / "index.json").read_text())
    assert held == resolve.build_index(), "write it anew: weft.hardware.resolve.write_index()"
    for entry in resolve.entries("gpus").values():
        gpu = hardware.gpu(entry.name)
        assert entry == resolve.CatalogEntry(gpu.name, gpu.title, gpu.aliases)
    for node in hardware.known_nodes():
        found = resolve.CatalogEntry(node.name, node.title, node.aliases, node.gpu.name, node.gpus_per_node, node.usual)
        assert resolve.entries("nodes")[node.name] == found


@pytest.mark.parametrize("name", ["h100-sxm", "1024xa100", "2x dgx-h100", "16xH100 (2 nodes)", "NVIDIA MI300X"])
def test_naming_a_machine_reads_the_files_of_that_machine_alone(name):
    code = """if True:
        import sys, weft
        read = []
        def watch(event, of):
            if event == "open" and "/catalog/" in str(of[0]):
                read.append(of[0])
        sys.addaudithook(watch)
        weft.system(sys.argv[1])
        print(len(read))"""
    done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 6
