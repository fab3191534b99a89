"""The configuration files as typed records: studies, benchmarks, training sets.

The fields' descriptions are the reference of all keys (docs/configuration.md). ``to_json`` gives back what the file
says, without the keys that it leaves out, so that a default that is added later changes no stored result.
"""
