"""Native CPU kernels: C, called through pointers, one call for a whole program of nodes.

node.py     the C structure of one operation, and programs of them
library.py  finds and loads the library, chooses the instruction set
build.py    compiles it, when the package is installed

kernels.c   all kernels, compiled once for each instruction set; tiles_*.h hold what differs between them
choose.c    which of these runs
team.c      the threads that run them
"""
