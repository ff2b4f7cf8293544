"""Where benchmark queries come from: their structure, the words of each engine, and sets of them made from a seed.

`shape` is a windowed aggregation apart from any engine, `dialect` spells it; `join` does both for joins in windows that all
streams share, `sliding` for those in windows that slide with every row; `similarity` tells how much two joins have in common.
`aggregations`, `joins`, `multiway`, `auctions` and `profit` are the sets, `sets` knows them by name.
"""
