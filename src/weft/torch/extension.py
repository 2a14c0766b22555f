"""What `weft.torch` registers: capture of PyTorch programs, and runs that other tools recorded."""

from weft.core.extensions import Extension

EXTENSION = Extension(
    "torch",
    names={
        "capture": "weft.torch.capture:capture",
        "capturing": "weft.torch.capture:capturing",
        "compare_trace": "weft.torch.compare:compare_trace",
        "read_execution_trace": "weft.torch.traces:read_execution_trace",
        "read_graph": "weft.torch.traces:read_graph",
        "read_trace": "weft.torch.traces:read_trace",
        "read_traces": "weft.torch.traces:read_traces",
        "write_chakra": "weft.torch.chakra:write_chakra",
    },
    commands={
        "Your own programs, traces and machines": {
            "capture": ("weft.torch.command:capture", "Capture a PyTorch model as a graph of operators."),
            "import": ("weft.torch.command:import_", "Read what a profiler recorded, on all ranks, and compare it."),
            "export": ("weft.torch.command:export", "Write a graph as Chakra's traces, for other simulators."),
        },
    },
    reports={
        "trace": "weft.torch.traces.page:TraceReport",
        "distributed trace": "weft.torch.traces.distributed_page:DistributedTraceReport",
        "trace comparison": "weft.torch.traces.page:TraceComparisonReport",
    },
    readers={"execution trace": "weft.torch.traces:read_graph"},
)
