"""Charts as SVG and their markup."""
