"""Pages: the contributing tab, dashboard, playground, rewards, operator.

`kvasir_site.urls` enters by `urls`; README.md says how a page is made.
It reads the market and nothing else.
"""
