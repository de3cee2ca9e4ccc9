"""The graph of the user's operators, and the plan made of it: vertices and exchanges. Plain data; nothing runs here."""

from headgate.graph.explain import explain_mermaid, explain_text
from headgate.graph.plan import ChainedOperator, Exchange, Plan, Ship, ShipKind, Vertex
from headgate.graph.planner import make_plan
from headgate.graph.stream_graph import Chaining, Edge, Node, StreamGraph

__all__ = [
    "ChainedOperator",
    "Chaining",
    "Edge",
    "Exchange",
    "Node",
    "Plan",
    "Ship",
    "ShipKind",
    "StreamGraph",
    "Vertex",
    "explain_mermaid",
    "explain_text",
    "make_plan",
]
