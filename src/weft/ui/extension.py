"""What `weft.ui` registers: the command that serves the page."""

from weft.core.extensions import Extension

EXTENSION = Extension(
    "ui",
    commands={"Trust and tools": {"ui": ("weft.ui.command:ui", "Explore designs on a page in the browser.")}},
)
