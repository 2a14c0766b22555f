"""One file per paper: what its study ran, under which configurations, and its figures beside Weft's."""

from weft.studies.headline import HeadlineRow

__all__ = ["HeadlineRow"]
