----------------------------- MODULE Replication -----------------------------
(***************************************************************************)
(* Replication of one partition with durability=fsync: leader elections,   *)
(* the ISR, the high watermark, truncation, lost disks, and what a power   *)
(* failure in any state would leave.                                       *)
(*                                                                         *)
(* A log is a sequence of leader epochs, one for each record: an epoch has *)
(* one leader, so offset and epoch name a record.  A leader begins its     *)
(* epoch with a record, which stands for the entry in the leader epoch     *)
(* checkpoint.                                                             *)
(*                                                                         *)
(*   leader      broker/replica/isr.py, leader_replication.py              *)
(*   follower    broker/replica/replica_fetch.py, divergence.py            *)
(*   controller  coordination/replication: partition_change.py,            *)
(*               election.py, alter_partition.py, recovery_election.py     *)
(*                                                                         *)
(* Left out: reassignments, unclean elections, deletion of records,        *)
(* changes of configs, and what follows a recovery election.               *)
(* tests/simulation has these.                                             *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
    Replicas,
    MinIsr,         \* min.insync.replicas
    Copies,         \* durable.copies: "leader", "minisr" or "all"; "none" with durability=os
    LengthMax,      \* records of a log
    ChangesMax,     \* partition epochs: changes of the partition
    CrashesMax,     \* processes that are killed
    DiskLossesMax,  \* disks that are lost while the power is on
    Mutant,         \* the rule that is broken, or "none"
    None            \* no leader, no proposal

VARIABLES
    \* Each replica's disk.
    log,            \* log[r]: the records
    flushed,        \* flushed[r]: the number of records that a power failure keeps
    reported,       \* reported[r]: its durable offset as others know it; flushed[r] without a mutant
    disk,           \* disk[r]: the number of disks that were lost; known to others by node epochs
    lost,           \* replicas whose disk was lost, and which have not registered since
    \* Each process.
    up,             \* the replicas whose process runs
    hw,             \* hw[r]: the high watermark that r knows
    view,           \* view[r]: the partition in the image of r; a follower needs leader and epoch
    progress,       \* progress[l][f]: the last fetch of f that leader l has noted
    pending,        \* pending[l]: the proposal of l that has no response
    \* The controller.
    partition,
    fenced,         \* replicas whose node is fenced
    request,        \* the proposal that it has not handled; one for an older partition has no effect
    \* History.
    committed,      \* <<offset, epoch>> of every record that was ever committed
    violated,       \* TRUE if a follower had to truncate committed records
    counts          \* crashes and lost disks so far

disks == <<log, flushed, reported, disk, lost>>
processes == <<up, hw, view, progress, pending>>
controller == <<partition, fenced, request>>
history == <<committed, violated, counts>>
vars == <<disks, processes, controller, history>>

Symmetry == Permutations(Replicas)

-----------------------------------------------------------------------------
Unknown == -1
Min(S) == CHOOSE n \in S : \A other \in S : n <= other
Max(S) == CHOOSE n \in S : \A other \in S : n >= other

\* The m-th largest value of f over S.
RECURSIVE Largest(_, _, _)
Largest(f, S, m) ==
    LET first == CHOOSE r \in S : \A other \in S : f[r] >= f[other]
    IN IF m = 1 THEN f[first] ELSE Largest(f, S \ {first}, m - 1)

LastEpoch(entries) == IF entries = <<>> THEN 0 ELSE entries[Len(entries)]

\* The largest epoch of a log that is at most `epoch`, and its end offset (OffsetForLeaderEpoch).
EndOf(entries, epoch) ==
    LET known == {i \in 1..Len(entries) : entries[i] <= epoch}
    IN IF known = {} THEN [epoch |-> 0, end |-> 0]
       ELSE [epoch |-> entries[Max(known)], end |-> Max(known)]

\* The number of flushed copies that a committed record has.
Wanted == IF Copies \in {"none", "leader"} THEN 1 ELSE MinIsr

NoView == [leader |-> None, epoch |-> 0, change |-> 0, isr |-> {}, elr |-> {}, witnesses |-> {},
           copies |-> 1]
NoProgress == [f \in Replicas |-> [end |-> Unknown, flushed |-> Unknown, disk |-> 0]]

Leads(r) == r \in up /\ view[r].leader = r

\* The end of a log once it has the record that begins the epoch of leader l.
EpochStart(l) == Min({i \in 1..Len(log[l]) : log[l][i] = view[l].epoch})

\* The members before or after the pending proposal, and those before and after.
Maximal(l) == view[l].isr \cup (IF pending[l] = None THEN {} ELSE pending[l].isr)
Minimal(l) == view[l].isr \cap (IF pending[l] = None THEN Replicas ELSE pending[l].isr)

\* The records below this are flushed on enough replicas (InSyncReplicas._durable).
Durable(l, minimal, maximal) ==
    LET counted == IF Mutant = "flushes_over_the_maximal_isr" THEN maximal ELSE minimal
        known == [r \in Replicas |-> IF r = l THEN reported[l] ELSE progress[l][r].flushed]
    IN IF Copies = "none" THEN Len(log[l])
       ELSE IF Cardinality(counted) < Wanted THEN Unknown
       ELSE IF Copies = "all" THEN Min({known[r] : r \in maximal})
       ELSE IF Copies = "leader" THEN reported[l]
       ELSE Largest(known, counted, Wanted)

-----------------------------------------------------------------------------
(* The controller *)

Active(r) == r \in up /\ r \notin fenced

\* What may follow from another ISR (partition_change.change): `gone` are replicas that have lost
\* their log, `copies` is the number of flushed copies that the leader reports, or 0.
Changes(isr, gone, byLeader, copies, isActive(_)) ==
    LET before == partition
        kept == isr \ gone
        elr == IF Cardinality(kept) >= MinIsr THEN {}
               ELSE (before.elr \cup before.isr) \ (kept \cup gone)
        isValid(r) == isActive(r) /\ (r \in kept \/ (kept = {} /\ r \in elr))
        leaders == IF before.leader # None /\ isValid(before.leader) THEN {before.leader}
                   ELSE IF \E r \in Replicas : isValid(r) THEN {r \in Replicas : isValid(r)}
                   ELSE {None}
        candidates == before.isr \cup before.elr \cup
                      (IF before.leader = None THEN {} ELSE {before.leader})
        rest == before.copies - Cardinality(gone \cap (candidates \cup before.witnesses))
    IN {LET members == IF leader \in kept \cup {None} THEN kept ELSE {leader}
            eligible == IF members = kept THEN elr ELSE IF MinIsr = 1 THEN {} ELSE elr \ {leader}
            known == before.witnesses \cup
                     (IF byLeader /\ leader = before.leader THEN {} ELSE candidates)
        IN [leader |-> leader,
            epoch |-> IF leader = before.leader THEN before.epoch ELSE before.epoch + 1,
            change |-> before.change + 1,
            isr |-> members,
            elr |-> eligible,
            witnesses |-> IF copies > 0 \/ Copies = "none" \/ Mutant = "no_witnesses" THEN {}
                          ELSE known \ (members \cup eligible),
            copies |-> IF copies > 0 THEN copies
                       ELSE IF Mutant = "lost_copies_are_counted" THEN before.copies
                       ELSE Max({1, rest})]
        : leader \in leaders}

\* Change the partition, unless only its number of changes would differ.
Change(changes) ==
    \E changed \in changes :
        IF [changed EXCEPT !.change = partition.change] = partition
        THEN UNCHANGED <<partition, request>>
        ELSE partition' = changed /\ request' = None

\* The process of a node has ended, or its heartbeats are late.
Fence(r) ==
    /\ r \notin fenced
    /\ r \in partition.isr \/ r \notin up
    /\ fenced' = fenced \cup {r}
    /\ LET isActive(other) == Active(other) /\ other # r
       IN Change(Changes(partition.isr \ {r}, {}, FALSE, 0, isActive))
    /\ UNCHANGED <<disks, processes, history>>

\* A process of a fenced node registers, and is unfenced once it has the image.  A replica without
\* its log leaves ISR and ELR before (leadership.remove_after_loss).
Register(r) ==
    /\ r \in fenced
    /\ fenced' = fenced \ {r}
    /\ up' = up \cup {r}
    /\ lost' = lost \ {r}
    /\ LET isActive(other) == Active(other) \/ other = r
       IN Change(Changes(partition.isr, lost \cap {r}, FALSE, 0, isActive))
    /\ UNCHANGED <<log, flushed, reported, disk, hw, view, progress, pending, history>>

\* A member of the ISR that is preferred leads (leadership.elect_preferred).
Prefer(r) ==
    /\ partition.leader \notin {None, r} /\ r \in partition.isr /\ Active(r)
    /\ partition' = [partition EXCEPT !.leader = r, !.epoch = @ + 1, !.change = @ + 1]
    /\ request' = None
    /\ UNCHANGED <<disks, processes, fenced, history>>

\* The controller handles a proposal (alter_partition.py).
Alter ==
    /\ request # None
    /\ LET known(r) == Active(r) /\ request.disks[r] = disk[r] /\ r \notin lost
       IN IF \A r \in request.isr : known(r)
          THEN /\ Change(Changes(request.isr, {}, TRUE, request.copies, Active))
               /\ UNCHANGED pending
          ELSE /\ request' = None  \* INELIGIBLE_REPLICA: certainly not applied
               /\ pending' = [pending EXCEPT ![request.leader] =
                                 IF @ = request THEN None ELSE @]
               /\ UNCHANGED partition
    /\ UNCHANGED <<disks, up, hw, view, progress, fenced, history>>

-----------------------------------------------------------------------------
(* Processes and disks *)

\* A process is killed.  The page cache keeps its log.
Crash(r) ==
    /\ r \in up /\ counts.crashes < CrashesMax
    /\ counts' = [counts EXCEPT !.crashes = @ + 1]
    /\ up' = up \ {r}
    /\ hw' = [hw EXCEPT ![r] = 0]
    /\ view' = [view EXCEPT ![r] = NoView]
    /\ progress' = [progress EXCEPT ![r] = NoProgress]
    /\ pending' = [pending EXCEPT ![r] = None]
    /\ UNCHANGED <<disks, controller, committed, violated>>

\* The disk of a killed process is lost, while others have flushed its records.
LoseDisk(r) ==
    /\ r \in fenced \ up /\ counts.disks < DiskLossesMax
    /\ \/ r \notin partition.isr \cup partition.elr \cup partition.witnesses
       \/ partition.copies > Cardinality(lost) + 1
    /\ counts' = [counts EXCEPT !.disks = @ + 1]
    /\ log' = [log EXCEPT ![r] = <<>>]
    /\ flushed' = [flushed EXCEPT ![r] = 0]
    /\ reported' = [reported EXCEPT ![r] = 0]
    /\ disk' = [disk EXCEPT ![r] = @ + 1]
    /\ lost' = lost \cup {r}
    /\ UNCHANGED <<processes, controller, committed, violated>>

Flush(r) ==
    /\ r \in up /\ flushed[r] < Len(log[r]) /\ Copies # "none"
    /\ flushed' = [flushed EXCEPT ![r] = Len(log[r])]
    /\ reported' = [reported EXCEPT ![r] = Len(log[r])]
    /\ UNCHANGED <<log, disk, lost, processes, controller, history>>

-----------------------------------------------------------------------------
(* Replicas *)

\* A process gets the image of the controller (replica_roles.py).
Learn(r) ==
    LET isNew == partition.epoch # view[r].epoch
        cutsToMark == Mutant = "truncate_to_the_high_watermark" /\ isNew /\ partition.leader # r
        cut == IF cutsToMark THEN hw[r] ELSE Len(log[r])
    IN /\ r \in up /\ partition.leader # None
       /\ isNew \/ (partition.leader = r /\ partition.change # view[r].change)
       /\ view' = [view EXCEPT ![r] =
                      IF partition.leader = r THEN partition
                      ELSE [NoView EXCEPT !.leader = partition.leader, !.epoch = partition.epoch]]
       /\ pending' = [pending EXCEPT ![r] = None]
       /\ progress' = IF isNew THEN [progress EXCEPT ![r] = NoProgress] ELSE progress
       /\ IF isNew /\ partition.leader = r
          THEN Len(log[r]) < LengthMax /\ log' = [log EXCEPT ![r] = Append(@, partition.epoch)]
          ELSE log' = [log EXCEPT ![r] = SubSeq(@, 1, cut)]
       /\ flushed' = [flushed EXCEPT ![r] = Min({@, cut})]
       /\ reported' = [reported EXCEPT ![r] = Min({@, cut})]
       /\ UNCHANGED <<disk, lost, up, hw, controller, history>>

Produce(l) ==
    /\ Leads(l) /\ Cardinality(view[l].isr) >= MinIsr /\ Len(log[l]) < LengthMax
    /\ log' = [log EXCEPT ![l] = Append(@, view[l].epoch)]
    /\ UNCHANGED <<flushed, reported, disk, lost, processes, controller, history>>

\* A follower fetches: it gets the next record, which acknowledges those before, or where the logs
\* diverge (leader_replication.read, replica_fetch.apply).
Fetch(f, l) ==
    /\ Leads(l) /\ f \in up \ {l} /\ view[f].leader = l /\ view[f].epoch = view[l].epoch
    /\ LET end == Len(log[f])
           fetched == [end |-> end, flushed |-> reported[f], disk |-> disk[f]]
           theirs == EndOf(log[l], LastEpoch(log[f]))
           own == EndOf(log[f], theirs.epoch)
           cut == IF own.epoch = theirs.epoch THEN Min({theirs.end, own.end}) ELSE own.end
       IN IF theirs.epoch < LastEpoch(log[f]) \/ theirs.end < end
          THEN /\ log' = [log EXCEPT ![f] = SubSeq(@, 1, cut)]
               /\ flushed' = [flushed EXCEPT ![f] = Min({@, cut})]
               /\ reported' = IF Mutant = "truncation_keeps_the_durable_offset"
                              THEN reported ELSE [reported EXCEPT ![f] = Min({@, cut})]
               /\ progress' = IF Mutant = "diverging_log_is_progress"
                               THEN [progress EXCEPT ![l][f] = fetched] ELSE progress
               /\ violated' = (violated \/ cut < hw[f])
               /\ UNCHANGED hw
          ELSE /\ progress' = [progress EXCEPT ![l][f] = fetched]
               /\ log' = IF end < Len(log[l])
                         THEN [log EXCEPT ![f] = Append(@, log[l][end + 1])] ELSE log
               /\ hw' = [hw EXCEPT ![f] = Max({@, Min({hw[l], Len(log'[f])})})]
               /\ UNCHANGED <<flushed, reported, violated>>
    /\ UNCHANGED <<disk, lost, up, view, pending, controller, committed, counts>>

\* The high watermark advances (InSyncReplicas.advance).
Advance(l) ==
    /\ Leads(l) /\ Cardinality(view[l].isr) >= MinIsr
    /\ LET counted == IF Mutant = "ends_over_the_proposed_isr" /\ pending[l] # None
                      THEN pending[l].isr ELSE Maximal(l)
           ends == {IF r = l THEN Len(log[l]) ELSE progress[l][r].end : r \in counted}
           durable == Durable(l, Minimal(l), Maximal(l))
           reached == Min(ends \cup {durable})
       IN /\ durable >= EpochStart(l) \/ Mutant = "epoch_start_is_not_flushed"
          /\ reached > hw[l]
          /\ hw' = [hw EXCEPT ![l] = reached]
          /\ committed' = committed \cup {<<i, log[l][i]>> : i \in 1..reached}
    /\ UNCHANGED <<disks, up, view, progress, pending, controller, violated, counts>>

\* A leader proposes an ISR, or reports that its records are flushed on enough of the members
\* (InSyncReplicas.propose).
Propose(l, isr) ==
    LET limit == Max({hw[l], EpochStart(l)})
        isFlushed == Durable(l, view[l].isr \cap isr, view[l].isr \cup isr) >= limit
        proposal == [leader |-> l,
                     isr |-> isr,
                     disks |-> [r \in isr |-> IF r = l THEN disk[l] ELSE progress[l][r].disk],
                     copies |-> IF isFlushed THEN Wanted ELSE 0]
    IN /\ pending[l] = None
       /\ isr # view[l].isr \/ (isFlushed /\ (view[l].witnesses # {} \/ view[l].copies < Wanted))
       /\ pending' = [pending EXCEPT ![l] = proposal]
       /\ request' = IF view[l].change = partition.change THEN proposal ELSE request
       /\ UNCHANGED <<disks, up, hw, view, progress, partition, fenced, history>>

Report(l) == Leads(l) /\ Propose(l, view[l].isr)

\* InSyncReplicas._may_join
Expand(l, f) ==
    /\ Leads(l) /\ f \notin view[l].isr
    /\ progress[l][f].end >= Max({hw[l], EpochStart(l)})
    /\ Copies = "all" => progress[l][f].flushed >= hw[l]
    /\ Propose(l, view[l].isr \cup {f})

\* InSyncReplicas._without_lagging: any follower may be late.
Shrink(l, f) ==
    /\ Leads(l) /\ f \in view[l].isr \ {l}
    /\ LET isr == view[l].isr \ {f}
           limit == IF Mutant = "shrink_before_the_epoch_is_flushed" THEN hw[l]
                    ELSE Max({hw[l], EpochStart(l)})
       IN /\ Cardinality(isr) < MinIsr \/ Durable(l, isr, isr) >= limit
          /\ Propose(l, isr)

-----------------------------------------------------------------------------
Init ==
    \E first \in Replicas :
        /\ partition = [leader |-> first, epoch |-> 1, change |-> 1, isr |-> Replicas, elr |-> {},
                        witnesses |-> {}, copies |-> Wanted]
        /\ fenced = {} /\ request = None
        /\ log = [r \in Replicas |-> IF r = first THEN <<1>> ELSE <<>>]
        /\ flushed = [r \in Replicas |-> 0]
        /\ reported = [r \in Replicas |-> 0]
        /\ disk = [r \in Replicas |-> 0] /\ lost = {}
        /\ up = Replicas
        /\ hw = [r \in Replicas |-> 0]
        /\ view = [r \in Replicas |-> IF r = first THEN partition
                                      ELSE [NoView EXCEPT !.leader = first, !.epoch = 1]]
        /\ progress = [l \in Replicas |-> NoProgress]
        /\ pending = [r \in Replicas |-> None]
        /\ committed = {} /\ violated = FALSE /\ counts = [crashes |-> 0, disks |-> 0]

Next ==
    \/ Alter
    \/ \E r \in Replicas :
        \/ Fence(r) \/ Register(r) \/ Prefer(r) \/ Crash(r) \/ LoseDisk(r) \/ Flush(r)
        \/ Learn(r) \/ Produce(r) \/ Advance(r) \/ Report(r)
        \/ \E f \in Replicas : Fetch(f, r) \/ Expand(r, f) \/ Shrink(r, f)

Spec == Init /\ [][Next]_vars

Bounds == partition.change <= ChangesMax

-----------------------------------------------------------------------------
(* Invariants *)

Has(entries, record) == record[1] <= Len(entries) /\ entries[record[1]] = record[2]

\* An elected leader has every record that was ever committed.
LeaderCompleteness ==
    \A l \in Replicas :
        Leads(l) /\ view[l].epoch = partition.epoch =>
            \A record \in committed : Has(log[l], record)

\* If the power fails now, each log keeps what was flushed and any part of the rest, and disks may be
\* lost with it as far as the number of flushed copies allows.  Whichever replicas have reported when
\* the recovery election takes place, its leader has every record that was committed
\* (recovery_election.recover).
PowerFailureLosesNothing ==
    LET candidates == partition.isr \cup partition.elr \cup partition.witnesses
        kept == {ends \in [Replicas -> 0..LengthMax] :
                    \A r \in Replicas : flushed[r] <= ends[r] /\ ends[r] <= Len(log[r])}
        groups == {here \in SUBSET (Replicas \ lost) :
                      /\ candidates \cap here # {}
                      /\ Cardinality(candidates \ here) <= partition.copies - 1}
    IN Copies # "none" /\ committed # {} => \A ends \in kept : \A here \in groups :
        LET after == [r \in here |-> SubSeq(log[r], 1, ends[r])]
            IsGreatest(r) == \A other \in here :
                \/ LastEpoch(after[other]) < LastEpoch(after[r])
                \/ /\ LastEpoch(after[other]) = LastEpoch(after[r])
                   /\ Len(after[other]) <= Len(after[r])
        IN \A r \in here :
            IsGreatest(r) \/ Mutant = "first_report_leads" =>
                \A record \in committed : Has(after[r], record)

\* What was visible at an offset never changes.
ConsistentRead == \A a, b \in committed : a[1] = b[1] => a[2] = b[2]

\* Two logs with one epoch at an offset are equal up to it.
LogMatching ==
    \A a, b \in Replicas : \A i \in 1..Min({Len(log[a]), Len(log[b])}) :
        log[a][i] = log[b][i] => SubSeq(log[a], 1, i) = SubSeq(log[b], 1, i)

OneLeaderPerEpoch ==
    \A a, b \in Replicas : Leads(a) /\ Leads(b) /\ view[a].epoch = view[b].epoch => a = b

\* The high watermark of the leader counts every member of the ISR at the controller.
IsrSuperset ==
    \A l \in Replicas :
        Leads(l) /\ view[l].epoch = partition.epoch => partition.isr \subseteq Maximal(l)

NoCommittedTruncation == ~violated

=============================================================================
