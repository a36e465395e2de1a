"""Groups: the coordinator of classic, consumer and share groups, and committed offsets.  No I/O.

`group_coordinator.py` is the state machine; `group.py` is its interface to a group of any kind.

    classic_membership.py    JoinGroup to LeaveGroup; consumer groups also have classic members
    offset_changes.py        OffsetCommit, TxnOffsetCommit, OffsetDelete
    consumer/ share/         the groups of KIP-848 and KIP-932, with their heartbeats
    classic/                 the groups of the classic protocol
    assignment/              topics, assignors, target assignments
    offsets/                 committed and pending offsets

A package imports only those below it in this list.
"""
