"""The state store: bytes under names, one object the unit of atomicity.

`store` is the contract, `memory`, `files` and `rados` fulfil it, `names` says where everything lies
and `codec` what the bytes mean.  Nothing here knows CSI or operations.
"""
