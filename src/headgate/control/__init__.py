"""The control protocol between a worker and the coordinator: messages, reports, and the connection that carries them.

| module | content |
| --- | --- |
| `messages` | every message, both directions |
| `reports` | the parts of `WorkerReport` and `StackSamples` |
| `link` | `ControlLink`: one end of a control connection, the same class on both sides |
| `connect` | a worker opens its link to the coordinator |
| `port` | the coordinator accepts the links of its workers |
"""
