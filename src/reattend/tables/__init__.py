"""Published tables, and what our results say beside them."""
