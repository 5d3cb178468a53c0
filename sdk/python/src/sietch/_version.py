"""The version of this package; it follows the API's, not the server's."""

__version__ = "1.0.0"
