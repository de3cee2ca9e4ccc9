"""NEXMark: an auction house as a stream of persons, auctions and bids, and nine queries about it.

`generator` makes the stream, `queries` has the queries as pipelines, `reference` the same as plain PySpark. The model
is the NEXMark benchmark (Tucker, Tufte, Papadimos, Maier: NEXMark, a benchmark for queries over data streams); names,
texts and figures are our own.
"""
