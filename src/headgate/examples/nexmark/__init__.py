"""NEXMark: an auction house as a stream of persons, auctions and bids, and nine queries about it.

`generator` makes the stream, `queries` has the queries as pipelines, `reference` the same as plain PySpark. After the
model of the NEXMark benchmark (Tucker, Tufte, Papadimos, Maier: NEXMark, a benchmark for queries over data streams),
in spirit: names, texts and figures are our own.
"""
