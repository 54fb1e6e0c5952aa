"""The page that shows what is in a dataset version: figures, then charts, then one HTML file that needs no network.

`answers` reads the numbers file by file, `figures` adds them up, `samples` chooses the texts that fit into a page,
`charts` draws, `page` puts all of it together. A new chart is a function in `charts` and a line in `page`.
"""
