"""lifecycle.yaml as typed models: what a user can configure, the defaults, and the policy of each table. Nothing here
opens a connection or starts anything; `embedded/` fills in missing addresses.
"""
