"""What is executed: the nodes added since the last time, and all they read from."""

from headgate.graph import Edge, StreamGraph


def names(nodes):
    return [node.name for node in nodes]


def test_a_second_execution_has_only_what_was_added_since():
    graph = StreamGraph()
    a = graph.add("a", object)
    b = graph.add("b", object, inputs=[Edge(a)])
    assert names(graph.take()) == ["a", "b"]
    assert graph.take() == []
    graph.add("c", object, inputs=[Edge(b)])
    x = graph.add("x", object)
    assert names(graph.nodes()) == ["a", "b", "c", "x"]
    assert x.id == 3


def test_one_operator_by_itself_leaves_the_rest_pending():
    graph = StreamGraph()
    a = graph.add("a", object)
    graph.add("print", object, inputs=[Edge(a)])
    b = graph.add("b", object, inputs=[Edge(a)])
    assert names(graph.take_only(b)) == ["a", "b"]
    assert names(graph.take()) == ["a", "print"]


def test_side_outputs_have_types_of_their_own():
    graph = StreamGraph()
    a = graph.add("a", object, hint=str)
    a.side_hints["late"] = int
    assert (Edge(a).hint, Edge(a, tag="late").hint, Edge(a, tag="other").hint) == (str, int, None)
