"""Images: ImageNet from folders, from `datasets` or from tar shards, and the small sets of torchvision's files."""
