"""Pages: the contributing tab, dashboard, playground, rewards, operator. README.md says how one is made."""
