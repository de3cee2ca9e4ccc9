"""Sources and sinks: where a pipeline reads records from and writes them to. Each is a file or a folder of its own."""
