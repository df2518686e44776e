"""The wire contracts: CSI (`csi_pb2`) and Waymark's own service (`waymark_pb2`).

The `.proto` files here are the source; the modules beside them are generated when the project is built
(see hatch_build.py) and never committed. Only `csi/` imports them.
"""
