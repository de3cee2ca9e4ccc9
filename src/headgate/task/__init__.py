"""What a task does between its input and its output: operators, chained, and the loop that drives them."""
