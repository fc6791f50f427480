"""The pages: contribute, dashboard, playground, rewards, operator (README.md says how to make one).

`kvasir_site` mounts `urls` and `live`, and sets `content_policy`.
It never changes the market: forms go to the market's own views.
"""
