"""Typed parts behind the scripts of `e2e/`: the cluster, the plugin processes, the audit, and CSI clients."""
