"""Parts of `bench_market`: a site on loopback, load and healing.

Only that benchmark enters.
It never touches a real database.
"""
