"""Public data sets, brought into the canonical layout."""
