"""Settings of runs that take seconds."""

SMALL = [
    "data=standin",
    "recipe.epochs=4",
    "recipe.batch_size=32",
    "backbone.options.dim=32",
    "backbone.options.depth=1",
    "trainer=cpu",
    "trainer.threads=1",
]
