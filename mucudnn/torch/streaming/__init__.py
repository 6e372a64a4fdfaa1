"""One huge sample in tiles that pass through many layers, exactly, within a budget.

`graph` traces the module, `rules` say what a tile needs, `planning` chooses the passes, `run` runs them, and
`copies` brings what they read to a GPU.
"""
