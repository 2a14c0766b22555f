"""Hides an extension also in the processes that tests start: Python imports this module when it starts."""

import os

if os.environ.get("WEFT_WITHOUT"):
    import hidden_extension

    hidden_extension.hide(os.environ["WEFT_WITHOUT"])
