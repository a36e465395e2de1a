"""Kafka's errors: one class for each code, with its name, its message and whether it is retriable.

Every error of the broker and the client is one of these, or a bug.  It is raised where it is
detected and converted to its code in one place.  The first sentence of a class's docstring is the
message if none is passed.

    Retriable        a retry may succeed
    StaleMetadata    a retry may succeed after the client has refreshed its metadata

Code 0 means success and has no class.  `BufferExhausted` and `TransactionAborted` are raised by
clients only.  Two classes are not Kafka's: `Refusal` is an error of the command line, whose message
says what to do; `Fatal` ends the process.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar, Self

BY_CODE: dict[int, type[KafkaError]] = {}


class KafkaError(Exception):
    """A request, or one entry of it, failed."""

    code: ClassVar[int]
    name: ClassVar[str]
    retriable: ClassVar[bool] = False
    # Index of the record in its batch and error message, for errors of single records.
    record_errors: Sequence[tuple[int, str]] = ()

    def __init_subclass__(cls, code: int | None = None) -> None:
        if code is None:
            return
        assert code not in BY_CODE, f"{cls.__name__} and {BY_CODE[code].__name__} both claim {code}"
        cls.code = code
        cls.name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).upper()
        BY_CODE[code] = cls

    def copy(self) -> Self:
        """Return a copy to raise, if the error itself is kept.

        An error that is raised repeatedly collects the frames of every raise and all objects in
        them: requests, slices, descriptors.
        """
        return type(self)(*self.args)

    again = copy
    """Former name."""

    def __str__(self) -> str:
        if self.args and self.args[0] is not None:
            return str(self.args[0])
        words = " ".join((self.__doc__ or "").split())
        return re.split(r"(?<=\.)\s", words, maxsplit=1)[0]


class Retriable(KafkaError):
    """A retry of the request may succeed."""

    retriable = True


class StaleMetadata(Retriable):
    """A retry of the request may succeed after a refresh of the metadata."""


class Refusal(Exception):
    """A command cannot be executed; the message says why and what to do."""

    exit_code = 1


class Fatal(Exception):
    """The process cannot continue safely: it exits now, and recovers its logs when restarted."""


def raise_for(code: int, message: str | None = None) -> None:
    """Raise the error with this code, of a response or a compiled function; none for code 0."""
    if code == 0:
        return
    error_class = BY_CODE.get(code)
    if error_class is None:
        raise UnknownServerError(message or f"Unknown error code {code}.")
    raise error_class(message)


class UnknownServerError(KafkaError, code=-1):
    """The broker failed with an unexpected error; see the broker's log."""

class OffsetOutOfRange(KafkaError, code=1):
    """The offset is out of range: its record was deleted, or is not written yet."""

class CorruptMessage(Retriable, code=2):
    """The batch is corrupt: its CRC, a length or a count does not match."""

class UnknownTopicOrPartition(StaleMetadata, code=3):
    """The topic or partition does not exist on this node."""

class InvalidFetchSize(KafkaError, code=4):
    """The requested fetch size is invalid."""

class LeaderNotAvailable(StaleMetadata, code=5):
    """The partition has no leader at the moment; an election is in progress."""

class NotLeaderOrFollower(StaleMetadata, code=6):
    """For a produce or fetch request, this node is not the leader of the partition."""

class RequestTimedOut(Retriable, code=7):
    """The request was not completed within its timeout."""

class BufferExhausted(RequestTimedOut):
    """buffer.memory was used up for max.block.ms."""

class BrokerNotAvailable(KafkaError, code=8):
    """The broker is not running or cannot be reached."""

class ReplicaNotAvailable(StaleMetadata, code=9):
    """This node has no replica of the partition at the moment."""

class MessageTooLarge(KafkaError, code=10):
    """The batch is larger than the topic's max.message.bytes allows."""

class StaleControllerEpoch(KafkaError, code=11):
    """The request comes from an earlier controller."""

class OffsetMetadataTooLarge(KafkaError, code=12):
    """The metadata of the committed offset are larger than offset.metadata.max.bytes."""

class NetworkException(StaleMetadata, code=13):
    """The connection was closed before a response was received."""

class CoordinatorLoadInProgress(Retriable, code=14):
    """The coordinator is loading its log."""

class CoordinatorNotAvailable(Retriable, code=15):
    """There is no coordinator for this key at the moment."""

class NotCoordinator(Retriable, code=16):
    """This node is not the coordinator for this key."""

class InvalidTopicException(KafkaError, code=17):
    """The topic name is invalid, or the operation is not allowed on this topic."""

class RecordListTooLarge(KafkaError, code=18):
    """The records of the request are together larger than a segment."""

class NotEnoughReplicas(Retriable, code=19):
    """Fewer replicas are in sync than min.insync.replicas; nothing was written."""

class NotEnoughReplicasAfterAppend(Retriable, code=20):
    """The records were written, but fewer replicas than min.insync.replicas are in sync."""

class InvalidRequiredAcks(KafkaError, code=21):
    """The required acks must be -1 (all), 0 or 1."""

class IllegalGeneration(KafkaError, code=22):
    """The generation of the request is not the current one of the group."""

class InconsistentGroupProtocol(KafkaError, code=23):
    """The member's protocol type or protocols do not match those of the group."""

class InvalidGroupId(KafkaError, code=24):
    """The group id is invalid."""

class UnknownMemberId(KafkaError, code=25):
    """The group has no member with this id."""

class InvalidSessionTimeout(KafkaError, code=26):
    """The session timeout is outside the range that the broker allows."""

class RebalanceInProgress(KafkaError, code=27):
    """The group is rebalancing; the member must join again."""

class InvalidCommitOffsetSize(KafkaError, code=28):
    """The offset commit is larger than a batch of the offsets topic."""

class TopicAuthorizationFailed(KafkaError, code=29):
    """The principal is not authorized for this operation on the topic."""

class GroupAuthorizationFailed(KafkaError, code=30):
    """The principal is not authorized for this operation on the group."""

class ClusterAuthorizationFailed(KafkaError, code=31):
    """The principal is not authorized for this operation on the cluster."""

class InvalidTimestamp(KafkaError, code=32):
    """A record's timestamp is too far from the broker's clock for this topic."""

class UnsupportedSaslMechanism(KafkaError, code=33):
    """The broker does not support this SASL mechanism."""

class IllegalSaslState(KafkaError, code=34):
    """The request is not valid in the current state of the SASL handshake."""

class UnsupportedVersion(KafkaError, code=35):
    """The broker does not support this version of the request."""

class TopicAlreadyExists(KafkaError, code=36):
    """A topic with this name already exists."""

class InvalidPartitions(KafkaError, code=37):
    """The number of partitions is invalid."""

class InvalidReplicationFactor(KafkaError, code=38):
    """The replication factor is below 1 or above the number of live nodes."""

class InvalidReplicaAssignment(KafkaError, code=39):
    """The replica assignment is invalid."""

class InvalidConfig(KafkaError, code=40):
    """A configuration key is unknown, or its value is invalid."""

class NotController(Retriable, code=41):
    """This node is not the controller."""

class InvalidRequest(KafkaError, code=42):
    """The request is malformed, or its fields contradict each other."""

class UnsupportedForMessageFormat(KafkaError, code=43):
    """The records are in a message format older than version 2."""

class PolicyViolation(KafkaError, code=44):
    """The request violates a policy of the cluster."""

class OutOfOrderSequenceNumber(KafkaError, code=45):
    """The sequence of the batch does not follow the producer's last one."""

class DuplicateSequenceNumber(KafkaError, code=46):
    """The sequence of the batch was already written, too long ago to return its offset."""

class InvalidProducerEpoch(KafkaError, code=47):
    """The producer epoch is older than the current one."""

class InvalidTxnState(KafkaError, code=48):
    """The transaction is not in a state that allows this operation."""

class InvalidProducerIdMapping(KafkaError, code=49):
    """The producer id is not the one of the transactional id."""

class InvalidTransactionTimeout(KafkaError, code=50):
    """The transaction timeout is above transaction.max.timeout.ms, or below 1."""

class ConcurrentTransactions(Retriable, code=51):
    """The producer's previous transaction is not completed yet."""

class TransactionCoordinatorFenced(KafkaError, code=52):
    """The marker comes from an earlier transaction coordinator."""

class TransactionalIdAuthorizationFailed(KafkaError, code=53):
    """The principal is not authorized to use this transactional id."""

class SecurityDisabled(KafkaError, code=54):
    """No authorizer is configured."""

class OperationNotAttempted(KafkaError, code=55):
    """The operation was not attempted, because another one in the same request failed."""

class KafkaStorageError(StaleMetadata, code=56):
    """The disk returned an error or is full; records without an acknowledgement were not kept."""

class LogDirNotFound(KafkaError, code=57):
    """The broker has no such log directory."""

class SaslAuthenticationFailed(KafkaError, code=58):
    """SASL authentication failed: the user name or the password is wrong."""

class UnknownProducerId(KafkaError, code=59):
    """The broker has no state for this producer id."""

class ReassignmentInProgress(KafkaError, code=60):
    """The partition is already being reassigned."""

class DelegationTokenAuthDisabled(KafkaError, code=61):
    """Delegation tokens are not enabled."""

class DelegationTokenNotFound(KafkaError, code=62):
    """The delegation token does not exist."""

class DelegationTokenOwnerMismatch(KafkaError, code=63):
    """The principal is neither the owner nor a renewer of this delegation token."""

class DelegationTokenRequestNotAllowed(KafkaError, code=64):
    """Delegation tokens cannot be requested on this connection."""

class DelegationTokenAuthorizationFailed(KafkaError, code=65):
    """The principal is not authorized for this operation on the delegation token."""

class DelegationTokenExpired(KafkaError, code=66):
    """The delegation token has expired."""

class InvalidPrincipalType(KafkaError, code=67):
    """The principal type is not supported."""

class NonEmptyGroup(KafkaError, code=68):
    """The group is not empty: it has members."""

class GroupIdNotFound(KafkaError, code=69):
    """There is no group of this id."""

class FetchSessionIdNotFound(Retriable, code=70):
    """The fetch session does not exist (any more); the client starts a new one."""

class InvalidFetchSessionEpoch(Retriable, code=71):
    """The epoch of the fetch session is not the expected one."""

class ListenerNotFound(StaleMetadata, code=72):
    """The leader has no listener with the name of the one that received the request."""

class TopicDeletionDisabled(KafkaError, code=73):
    """Topics cannot be deleted while delete.topic.enable is false."""

class FencedLeaderEpoch(StaleMetadata, code=74):
    """The leader epoch in the request is older than the current one."""

class UnknownLeaderEpoch(StaleMetadata, code=75):
    """The leader epoch in the request is newer than the one known to this node."""

class UnsupportedCompressionType(KafkaError, code=76):
    """The compression type of the batch is not supported by this version of the request."""

class StaleBrokerEpoch(KafkaError, code=77):
    """The broker epoch in the request is older than the current one."""

class OffsetNotAvailable(Retriable, code=78):
    """The high watermark of the new leader has not caught up yet."""

class MemberIdRequired(KafkaError, code=79):
    """The member must join again with the member id in this response."""

class PreferredLeaderNotAvailable(StaleMetadata, code=80):
    """The preferred leader is not alive or not in sync."""

class GroupMaxSizeReached(KafkaError, code=81):
    """The group has reached its maximum size, group.max.size."""

class FencedInstanceId(KafkaError, code=82):
    """Another member with the same group instance id has joined."""

class EligibleLeadersNotAvailable(StaleMetadata, code=83):
    """No replica that is eligible as leader is available."""

class ElectionNotNeeded(StaleMetadata, code=84):
    """No election is needed: the partition already has the requested leader."""

class NoReassignmentInProgress(KafkaError, code=85):
    """The partition is not being reassigned."""

class GroupSubscribedToTopic(KafkaError, code=86):
    """The group is subscribed to the topic whose offsets are to be deleted."""

class InvalidRecord(KafkaError, code=87):
    """A record of the batch is invalid; the whole batch was refused."""

class MissingKey(InvalidRecord):
    """A record for a compacted topic has no key; the whole batch was refused."""

    record_count: int = 0
    """Number of records of the batch without a key."""

class UnstableOffsetCommit(Retriable, code=88):
    """An open transaction has uncommitted offsets for this partition."""

class ThrottlingQuotaExceeded(Retriable, code=89):
    """The client's quota is exceeded."""

class ProducerFenced(KafkaError, code=90):
    """A newer producer with the same transactional id has fenced this one."""

class ResourceNotFound(KafkaError, code=91):
    """The resource does not exist."""

class DuplicateResource(KafkaError, code=92):
    """The request contains a resource twice."""

class UnacceptableCredential(KafkaError, code=93):
    """The credential does not meet the broker's requirements."""

class InconsistentVoterSet(KafkaError, code=94):
    """The voter sets of candidate and voter differ."""

class InvalidUpdateVersion(KafkaError, code=95):
    """The feature cannot be set to this version."""

class FeatureUpdateFailed(KafkaError, code=96):
    """The features could not be updated."""

class PrincipalDeserializationFailure(KafkaError, code=97):
    """The principal in the forwarded request cannot be decoded."""

class SnapshotNotFound(KafkaError, code=98):
    """The snapshot does not exist."""

class PositionOutOfRange(KafkaError, code=99):
    """The position is outside the snapshot."""

class UnknownTopicId(StaleMetadata, code=100):
    """No topic with this id exists on this node."""

class DuplicateBrokerRegistration(KafkaError, code=101):
    """A live broker is already registered with this id."""

class BrokerIdNotRegistered(KafkaError, code=102):
    """No broker is registered with this id."""

class InconsistentTopicId(StaleMetadata, code=103):
    """The topic id in the request is not that of the log."""

class InconsistentClusterId(KafkaError, code=104):
    """The cluster id in the request is not that of this cluster."""

class TransactionalIdNotFound(KafkaError, code=105):
    """The transactional id does not exist."""

class FetchSessionTopicIdError(Retriable, code=106):
    """The fetch session changed between topic ids and topic names."""

class IneligibleReplica(KafkaError, code=107):
    """A replica in the new in-sync set is not eligible."""

class NewLeaderElected(KafkaError, code=108):
    """The in-sync set was changed, and with it the leader."""

class OffsetMovedToTieredStorage(KafkaError, code=109):
    """The record at this offset has been moved to tiered storage."""

class FencedMemberEpoch(KafkaError, code=110):
    """The coordinator has fenced this member; it must abandon its partitions and join again."""

class UnreleasedInstanceId(KafkaError, code=111):
    """The group instance id is in use by another member, which must leave first."""

class UnsupportedAssignor(KafkaError, code=112):
    """The assignor is not supported."""

class StaleMemberEpoch(KafkaError, code=113):
    """The member epoch is older than the current one; the next heartbeat response contains that."""

class MismatchedEndpointType(KafkaError, code=114):
    """The request was sent to an endpoint of another type: broker or controller."""

class UnsupportedEndpointType(KafkaError, code=115):
    """The endpoint type is not supported."""

class UnknownControllerId(KafkaError, code=116):
    """The controller id is unknown."""

class UnknownSubscriptionId(KafkaError, code=117):
    """The telemetry subscription has changed; the client must request it again."""

class TelemetryTooLarge(KafkaError, code=118):
    """The telemetry is larger than telemetry.max.bytes."""

class InvalidRegistration(KafkaError, code=119):
    """The controller refuses the broker's registration."""

class TransactionAbortable(KafkaError, code=120):
    """The transaction cannot be committed and must be aborted; the producer can continue."""

class TransactionAborted(TransactionAbortable):
    """The transaction was aborted before the record was sent."""

class InvalidRecordState(KafkaError, code=121):
    """The record is not in a state in which this member can acknowledge it."""

class ShareSessionNotFound(Retriable, code=122):
    """The share session does not exist (any more); the client starts a new one."""

class InvalidShareSessionEpoch(Retriable, code=123):
    """The epoch of the share session is not the expected one."""

class FencedStateEpoch(KafkaError, code=124):
    """The state epoch of the share group is older than the current one."""

class InvalidVoterKey(KafkaError, code=125):
    """The voter key does not match that of this replica."""

class DuplicateVoter(KafkaError, code=126):
    """The node is already a voter."""

class VoterNotFound(KafkaError, code=127):
    """The node is not a voter."""

class InvalidRegularExpression(KafkaError, code=128):
    """The regular expression of the subscription is invalid."""

class RebootstrapRequired(KafkaError, code=129):
    """The client's metadata are too old; it must start from its bootstrap servers."""

class StreamsInvalidTopology(KafkaError, code=130):
    """The topology is invalid."""

class StreamsInvalidTopologyEpoch(KafkaError, code=131):
    """The topology epoch is invalid."""

class StreamsTopologyFenced(KafkaError, code=132):
    """The group uses a newer topology epoch."""

class ShareSessionLimitReached(Retriable, code=133):
    """The maximum number of share sessions is reached."""

class GroupDeletionFailed(KafkaError, code=134):
    """The group could not be deleted."""

class StreamsTopologyDescriptionUpdateFailed(KafkaError, code=135):
    """The description of the topology could not be stored."""

class ControllerIdNotRegistered(KafkaError, code=136):
    """No controller is registered with this id."""
