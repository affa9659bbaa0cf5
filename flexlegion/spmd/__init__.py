"""Programs that all devices of a mesh run alike: how others train, and what `export` writes.

In a program of PyTorch, JAX or Megatron-LM, each device runs the same operators on its own part of
each tensor, and what has to move does so in collectives (an all-reduce, say), which NCCL carries
out. That is another way to run a strategy than flexlegion's runtime has, where every task reads
what it needs from whoever wrote it. It takes another time and another memory.

From top to bottom: `axes` says which dimension of an operator each axis of a mesh divides, `layout`
how its operands lie then, `program` where operators are and when collectives run, `steps` what a
device does in turn, `collectives` what that takes on a machine's links, `schedule` in which order
micro-batches go through the stages, `memory` what is kept, and `timeline` puts it together.
"""
