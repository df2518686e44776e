"""From protobuf to commands, one module a service.

Every answer "the request is wrong in itself" is given here, before anything is read or written.
"""
