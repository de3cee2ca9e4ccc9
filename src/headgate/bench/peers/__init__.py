"""The workloads of the pipeline suite, and programs that run them on other systems.

The programs are run as scripts, in an environment that has their system and not headgate (`make bench-peers`): they
import nothing but that system, the standard library, and `workloads`, which lies beside them.
"""
