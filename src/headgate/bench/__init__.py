"""`headgate bench`: five suites that measure headgate beside a known baseline, in the same run.

`harness` runs the cases and lists the suites; each suite is the function of its own name in the module of that name.
"""
