"""Simulated workers, a store and a broker under virtual time: `make simulate SEEDS=2000`.

Real are: the machine, the plan, the gate, the courier (without its thread), the memory store and the memory queues.
Played are: processes, their clocks, the network, Celery's pool, and the faults.
"""
