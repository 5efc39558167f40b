"""A simulated world in virtual time: the real lifecycle table and a real catalog among everything that goes wrong.

Control planes use ``domain.lifecycle.decide`` and a ``ports.catalog.Catalog`` with compare-and-swap; nodes and the
snapshot store are models. Orders and reports are lost, late, repeated and overtaken; control planes and nodes crash;
instances die. One seed is one history. ``python -m torpor.testing.world SEED`` tells it.
"""
