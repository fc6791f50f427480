"""Template tags of the pages.

Templates enter by `page_frame`.
A tag never queries a database.
"""
