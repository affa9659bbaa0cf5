"""Writes what the headers between Python and native code declare as a Python module.

cffi would take a tenth of a second to parse them at each start. The module needs the libraries only
when its `ffi` opens them.

Usage: declare.py MODULE HEADER...
"""

import sys
from pathlib import Path

from cffi import FFI

module, *headers = map(Path, sys.argv[1:])
ffi = FFI()
ffi.set_source(module.stem, None)
for header in headers:
    ffi.cdef(header.read_text().split("/* cdef begin */")[1].split("/* cdef end */")[0])
ffi.emit_python_code(str(module))
