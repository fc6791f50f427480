"""The market's rows in SQL, in one Django app: nodes and accounts, work, the ledger.

The market's own rooms enter; other packages ask those rooms.
It holds no decisions: rules are pure functions elsewhere.
"""

from market.models import ledger, nodes, work

__all__ = ["ledger", "nodes", "work"]
