"""Raw files that are turned into arrays once, checked, and mapped into memory by all runs."""
