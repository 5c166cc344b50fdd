"""Long Range Arena: generators, readers and prepared arrays of its five tasks."""
