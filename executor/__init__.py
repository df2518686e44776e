"""The operation executor: every changing call as a versioned transaction of named stages.

`operation_executor` is the public face.  The engine underneath is sans-IO: a transaction is a generator that
yields effects and receives outcomes.  Nothing here knows images, gRPC or Kubernetes.
"""
