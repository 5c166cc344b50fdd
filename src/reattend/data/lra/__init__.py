"""Long Range Arena: generators and readers of its five tasks."""
