"""The driver behind the services: commands become operations, and work that nobody calls for is tended."""
