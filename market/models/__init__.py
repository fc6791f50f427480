"""The market's tables, of one Django app: nodes and accounts, work, the ledger.

The market's other rooms enter; packages outside call those rooms.
It never decides anything: rules are pure functions elsewhere.
"""

from market.models import ledger, nodes, work

__all__ = ["ledger", "nodes", "work"]
