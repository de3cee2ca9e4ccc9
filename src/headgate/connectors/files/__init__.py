"""Files as a source and as a sink: text, CSV, JSON lines, Parquet."""
