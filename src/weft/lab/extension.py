"""What `weft.lab` registers: validation of the models against measurements, and calibration of machines."""

from weft.core.extensions import Extension

EXTENSION = Extension(
    "lab",
    names={"calibrate": "weft.lab.catalog:calibrate", "validate": "weft.lab.run:validate"},
    commands={
        "Your own programs, traces and machines": {
            "calibrate": ("weft.lab.command:calibrate", "Fit a machine to its own measurements."),
        },
        "Trust and tools": {
            "validate": ("weft.lab.command:validate", "Compare the models with measured times."),
        },
    },
    measured={
        name: f"weft.lab.studies:{name}"
        for name in ("measured_kernels", "measured_steps", "projection_errors", "projections")
    },
    reports={"validation": "weft.lab.page:ValidationReport"},
)
