"""Every Kafka error: its code, whether asking again may help, and one sentence.

A fault has a Kafka code or it is a bug; there is no second vocabulary.  It is raised where it is
found and becomes a number in one place.  The first sentence of a class is what a client reads
when the place that raised it had nothing more exact to say.

    Retriable        the same request may succeed later
    StaleMetadata    the same request may succeed once the client has refreshed its metadata

Code 0 means that nothing is wrong and has no class.  Two classes are not Kafka's: a `Refusal`
tells a person, in one sentence, why the command line will not do what was asked; a `Fatal` ends
the process.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar, Self

BY_CODE: dict[int, type[KafkaError]] = {}


class KafkaError(Exception):
    """A request, or one entry of it, cannot be served."""

    code: ClassVar[int]
    name: ClassVar[str]
    retriable: ClassVar[bool] = False
    # (index of the record in its batch, what is wrong with it), for faults of single records
    record_errors: Sequence[tuple[int, str]] = ()

    def __init_subclass__(cls, code: int | None = None) -> None:
        if code is None:
            return
        assert code not in BY_CODE, f"{cls.__name__} and {BY_CODE[code].__name__} both claim {code}"
        cls.code = code
        cls.name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).upper()
        BY_CODE[code] = cls

    def again(self) -> Self:
        """The same, to be raised of one that is kept.

        Raised itself, it would gather the frames of every raise, and all that they hold: requests,
        slices, descriptors.
        """
        return type(self)(*self.args)

    def __str__(self) -> str:
        if self.args and self.args[0] is not None:
            return str(self.args[0])
        words = " ".join((self.__doc__ or "").split())
        return re.split(r"(?<=\.)\s", words, maxsplit=1)[0]


class Retriable(KafkaError):
    """The request may succeed when it is sent again."""

    retriable = True


class StaleMetadata(Retriable):
    """The request may succeed when it is sent again after refreshing the metadata."""


class Refusal(Exception):
    """What was asked of the command line cannot be done; the message says why and what to do."""

    exit_code = 1


class Fatal(Exception):
    """The process can no longer keep its promises: it ends now, and starts again from its logs."""


def raise_for(code: int, message: str | None = None) -> None:
    """Raise the error that a code from a compiled function, or from the wire, stands for."""
    if code == 0:
        return
    fault = BY_CODE.get(code)
    if fault is None:
        raise UnknownServerError(message or f"Error code {code} is not known here.")
    raise fault(message)


class UnknownServerError(KafkaError, code=-1):
    """The broker failed in a way that has no code of its own; its log says more."""

class OffsetOutOfRange(KafkaError, code=1):
    """The partition holds no record at this offset: it was deleted, or not written yet."""

class CorruptMessage(Retriable, code=2):
    """The bytes do not check: a length, a checksum or a count in the batch is wrong."""

class UnknownTopicOrPartition(StaleMetadata, code=3):
    """No such topic or partition is known on this node."""

class InvalidFetchSize(KafkaError, code=4):
    """The size asked of the fetch is not one the broker can give."""

class LeaderNotAvailable(StaleMetadata, code=5):
    """The partition has no leader at this moment; one is being chosen."""

class NotLeaderOrFollower(StaleMetadata, code=6):
    """The partition is led elsewhere; its leader is another worker's node."""

class RequestTimedOut(Retriable, code=7):
    """The request was not finished within the time it allowed."""

class BrokerNotAvailable(KafkaError, code=8):
    """The broker is not running or cannot be reached."""

class ReplicaNotAvailable(StaleMetadata, code=9):
    """This node holds no replica of the partition at this moment."""

class MessageTooLarge(KafkaError, code=10):
    """The batch is larger than the topic's max.message.bytes allows."""

class StaleControllerEpoch(KafkaError, code=11):
    """The request comes from a controller that has been replaced."""

class OffsetMetadataTooLarge(KafkaError, code=12):
    """The text beside the committed offset is longer than the broker keeps."""

class NetworkException(StaleMetadata, code=13):
    """The connection ended before an answer came."""

class CoordinatorLoadInProgress(Retriable, code=14):
    """The coordinator is still reading its log."""

class CoordinatorNotAvailable(Retriable, code=15):
    """There is no coordinator for this key at this moment."""

class NotCoordinator(Retriable, code=16):
    """Another node coordinates this key."""

class InvalidTopicException(KafkaError, code=17):
    """A topic cannot have this name, or cannot be used in this way."""

class RecordListTooLarge(KafkaError, code=18):
    """The records of one request are together larger than a segment may be."""

class NotEnoughReplicas(Retriable, code=19):
    """Fewer replicas are in sync than min.insync.replicas asks; nothing was written."""

class NotEnoughReplicasAfterAppend(Retriable, code=20):
    """The records were written, then too few replicas were in sync."""

class InvalidRequiredAcks(KafkaError, code=21):
    """The required acks must be -1 (all), 0 or 1."""

class IllegalGeneration(KafkaError, code=22):
    """The member speaks of a generation that the group has left behind."""

class InconsistentGroupProtocol(KafkaError, code=23):
    """The member's protocol type or protocols do not fit the group's."""

class InvalidGroupId(KafkaError, code=24):
    """A group cannot have this id."""

class UnknownMemberId(KafkaError, code=25):
    """The coordinator does not know this member."""

class InvalidSessionTimeout(KafkaError, code=26):
    """The session timeout is outside what the broker allows."""

class RebalanceInProgress(KafkaError, code=27):
    """The group is rebalancing; the member must join again."""

class InvalidCommitOffsetSize(KafkaError, code=28):
    """The commit is larger than one batch of the offsets topic may be."""

class TopicAuthorizationFailed(KafkaError, code=29):
    """The caller may not do this to the topic."""

class GroupAuthorizationFailed(KafkaError, code=30):
    """The caller may not do this to the group."""

class ClusterAuthorizationFailed(KafkaError, code=31):
    """The caller may not do this to the cluster."""

class InvalidTimestamp(KafkaError, code=32):
    """A record's timestamp is too far from the broker's clock for this topic."""

class UnsupportedSaslMechanism(KafkaError, code=33):
    """The broker does not offer this SASL mechanism."""

class IllegalSaslState(KafkaError, code=34):
    """The request does not fit the state of the login."""

class UnsupportedVersion(KafkaError, code=35):
    """The broker does not serve this version of the request."""

class TopicAlreadyExists(KafkaError, code=36):
    """There is a topic of this name already."""

class InvalidPartitions(KafkaError, code=37):
    """A topic cannot have this number of partitions."""

class InvalidReplicationFactor(KafkaError, code=38):
    """The replication factor is below 1 or above the number of live nodes."""

class InvalidReplicaAssignment(KafkaError, code=39):
    """The replicas named for the partitions are not a possible assignment."""

class InvalidConfig(KafkaError, code=40):
    """A configuration key is unknown, or its value is not possible."""

class NotController(Retriable, code=41):
    """This node is not the controller."""

class InvalidRequest(KafkaError, code=42):
    """The request's bytes or its fields do not make sense together."""

class UnsupportedForMessageFormat(KafkaError, code=43):
    """The records are in a message format older than version 2."""

class PolicyViolation(KafkaError, code=44):
    """The request is against a policy set for this cluster."""

class OutOfOrderSequenceNumber(KafkaError, code=45):
    """The batch's sequence number leaves a gap after the producer's last one."""

class DuplicateSequenceNumber(KafkaError, code=46):
    """The batch repeats a sequence number too old to be remembered."""

class InvalidProducerEpoch(KafkaError, code=47):
    """A newer instance of this producer has written since."""

class InvalidTxnState(KafkaError, code=48):
    """The transaction is not in a state that allows this."""

class InvalidProducerIdMapping(KafkaError, code=49):
    """The transactional id belongs to another producer id."""

class InvalidTransactionTimeout(KafkaError, code=50):
    """The transaction timeout is above transaction.max.timeout.ms, or below 1."""

class ConcurrentTransactions(Retriable, code=51):
    """The producer's previous transaction is still being completed."""

class TransactionCoordinatorFenced(KafkaError, code=52):
    """The marker comes from a transaction coordinator since replaced."""

class TransactionalIdAuthorizationFailed(KafkaError, code=53):
    """The caller may not use this transactional id."""

class SecurityDisabled(KafkaError, code=54):
    """No authorizer is configured, so there are no access rules to change."""

class OperationNotAttempted(KafkaError, code=55):
    """Nothing was tried for this entry, because another entry failed first."""

class KafkaStorageError(StaleMetadata, code=56):
    """The disk refused, or has no space left; what was not acknowledged was not kept."""

class LogDirNotFound(KafkaError, code=57):
    """The broker has no such log directory."""

class SaslAuthenticationFailed(KafkaError, code=58):
    """The user name or the password is wrong."""

class UnknownProducerId(KafkaError, code=59):
    """The broker remembers nothing of this producer any more."""

class ReassignmentInProgress(KafkaError, code=60):
    """The partition is being moved already."""

class DelegationTokenAuthDisabled(KafkaError, code=61):
    """Delegation tokens are not enabled."""

class DelegationTokenNotFound(KafkaError, code=62):
    """There is no such delegation token."""

class DelegationTokenOwnerMismatch(KafkaError, code=63):
    """The caller neither owns this delegation token nor may renew it."""

class DelegationTokenRequestNotAllowed(KafkaError, code=64):
    """This connection may not ask for delegation tokens."""

class DelegationTokenAuthorizationFailed(KafkaError, code=65):
    """The caller may not do this to the delegation token."""

class DelegationTokenExpired(KafkaError, code=66):
    """The delegation token has expired."""

class InvalidPrincipalType(KafkaError, code=67):
    """The broker does not know this type of principal."""

class NonEmptyGroup(KafkaError, code=68):
    """The group still has members."""

class GroupIdNotFound(KafkaError, code=69):
    """There is no group of this id."""

class FetchSessionIdNotFound(Retriable, code=70):
    """The fetch session was forgotten; the client begins a new one."""

class InvalidFetchSessionEpoch(Retriable, code=71):
    """The fetch does not follow the last one of its session."""

class ListenerNotFound(StaleMetadata, code=72):
    """The leader has no listener like the one this request came through."""

class TopicDeletionDisabled(KafkaError, code=73):
    """Topics cannot be deleted while delete.topic.enable is false."""

class FencedLeaderEpoch(StaleMetadata, code=74):
    """The client names a leader epoch that has ended."""

class UnknownLeaderEpoch(StaleMetadata, code=75):
    """The client names a leader epoch that has not reached this node yet."""

class UnsupportedCompressionType(KafkaError, code=76):
    """The batch is compressed in a way this request's version cannot carry."""

class StaleBrokerEpoch(KafkaError, code=77):
    """The request comes from an earlier life of this broker."""

class OffsetNotAvailable(Retriable, code=78):
    """The new leader's high watermark has not caught up yet."""

class MemberIdRequired(KafkaError, code=79):
    """The member must join again with the id given in this answer."""

class PreferredLeaderNotAvailable(StaleMetadata, code=80):
    """The preferred leader is not live or not in sync."""

class GroupMaxSizeReached(KafkaError, code=81):
    """The group has as many members as it may have."""

class FencedInstanceId(KafkaError, code=82):
    """Another member has taken over this group instance id."""

class EligibleLeadersNotAvailable(StaleMetadata, code=83):
    """No replica that could lead the partition is live."""

class ElectionNotNeeded(StaleMetadata, code=84):
    """The partition is led as asked already."""

class NoReassignmentInProgress(KafkaError, code=85):
    """The partition is not being moved."""

class GroupSubscribedToTopic(KafkaError, code=86):
    """The group still subscribes to the topic whose offsets were to be deleted."""

class InvalidRecord(KafkaError, code=87):
    """A record in the batch is not allowed here; the whole batch was refused."""

class UnstableOffsetCommit(Retriable, code=88):
    """A transaction that commits offsets for this partition is still open."""

class ThrottlingQuotaExceeded(Retriable, code=89):
    """The caller's quota is used up for now."""

class ProducerFenced(KafkaError, code=90):
    """A newer producer with the same transactional id has taken over."""

class ResourceNotFound(KafkaError, code=91):
    """There is no such resource."""

class DuplicateResource(KafkaError, code=92):
    """The request names one resource twice."""

class UnacceptableCredential(KafkaError, code=93):
    """The credential does not meet what the broker asks of one."""

class InconsistentVoterSet(KafkaError, code=94):
    """The two sides of the vote do not know the same voters."""

class InvalidUpdateVersion(KafkaError, code=95):
    """The feature cannot be set to this version."""

class FeatureUpdateFailed(KafkaError, code=96):
    """The features could not be updated."""

class PrincipalDeserializationFailure(KafkaError, code=97):
    """The principal in the forwarded request cannot be read."""

class SnapshotNotFound(KafkaError, code=98):
    """There is no such snapshot."""

class PositionOutOfRange(KafkaError, code=99):
    """The position lies outside the snapshot."""

class UnknownTopicId(StaleMetadata, code=100):
    """No topic with this id is known on this node."""

class DuplicateBrokerRegistration(KafkaError, code=101):
    """A live broker is registered under this id."""

class BrokerIdNotRegistered(KafkaError, code=102):
    """No broker is registered under this id."""

class InconsistentTopicId(StaleMetadata, code=103):
    """The topic's id in the request is not the one in the log."""

class InconsistentClusterId(KafkaError, code=104):
    """The request is meant for another cluster."""

class TransactionalIdNotFound(KafkaError, code=105):
    """There is no such transactional id."""

class FetchSessionTopicIdError(Retriable, code=106):
    """The fetch session began with topic ids, or without; it cannot change."""

class IneligibleReplica(KafkaError, code=107):
    """A replica in the new in-sync set may not be in it."""

class NewLeaderElected(KafkaError, code=108):
    """The partition was changed as asked, and its leader with it."""

class OffsetMovedToTieredStorage(KafkaError, code=109):
    """The record at this offset lives in tiered storage now."""

class FencedMemberEpoch(KafkaError, code=110):
    """The coordinator gave up this member; it must drop its partitions and join again."""

class UnreleasedInstanceId(KafkaError, code=111):
    """Another member holds this instance id and must leave first."""

class UnsupportedAssignor(KafkaError, code=112):
    """The broker has no such assignor."""

class StaleMemberEpoch(KafkaError, code=113):
    """The member's epoch is old; its next heartbeat brings the new one."""

class MismatchedEndpointType(KafkaError, code=114):
    """The request was sent to a broker but meant for a controller, or the reverse."""

class UnsupportedEndpointType(KafkaError, code=115):
    """There are no endpoints of this type."""

class UnknownControllerId(KafkaError, code=116):
    """There is no controller with this id."""

class UnknownSubscriptionId(KafkaError, code=117):
    """The telemetry subscription has changed; the client must ask for it again."""

class TelemetryTooLarge(KafkaError, code=118):
    """The telemetry is larger than the broker takes."""

class InvalidRegistration(KafkaError, code=119):
    """The controller refuses the broker's registration."""

class TransactionAbortable(KafkaError, code=120):
    """The transaction cannot be committed; the producer goes on after aborting it."""

class InvalidRecordState(KafkaError, code=121):
    """The record is not this member's to acknowledge."""

class ShareSessionNotFound(Retriable, code=122):
    """The share session was forgotten; the client begins a new one."""

class InvalidShareSessionEpoch(Retriable, code=123):
    """The request does not follow the last one of its share session."""

class FencedStateEpoch(KafkaError, code=124):
    """The state of the share group has moved on to a newer epoch."""

class InvalidVoterKey(KafkaError, code=125):
    """The vote was meant for another incarnation of this replica."""

class DuplicateVoter(KafkaError, code=126):
    """The node is a voter already."""

class VoterNotFound(KafkaError, code=127):
    """The node is not a voter."""

class InvalidRegularExpression(KafkaError, code=128):
    """The subscription is not a regular expression the broker can run."""

class RebootstrapRequired(KafkaError, code=129):
    """The client's knowledge of the cluster is too old; it must begin at its bootstrap."""

class StreamsInvalidTopology(KafkaError, code=130):
    """The topology cannot be run."""

class StreamsInvalidTopologyEpoch(KafkaError, code=131):
    """The topology's epoch is not a possible one."""

class StreamsTopologyFenced(KafkaError, code=132):
    """The group runs a newer topology."""

class ShareSessionLimitReached(Retriable, code=133):
    """The broker holds as many share sessions as it may."""

class GroupDeletionFailed(KafkaError, code=134):
    """The group could not be deleted."""

class StreamsTopologyDescriptionUpdateFailed(KafkaError, code=135):
    """The description of the topology could not be stored."""

class ControllerIdNotRegistered(KafkaError, code=136):
    """No controller is registered under this id."""
