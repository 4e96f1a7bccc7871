"""Reports: self-contained HTML files."""
