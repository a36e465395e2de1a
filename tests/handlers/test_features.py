"""Features in ApiVersions and UpdateFeatures, through the dispatcher of a real node."""

from __future__ import annotations

import pytest

from kafkalite import errors
from kafkalite.broker.security import ALTER
from kafkalite.protocol.schemas import transaction_records
from kafkalite.protocol.schemas.cluster import API_VERSIONS, UPDATE_FEATURES
from kafkalite.records.batch import batches
from kafkalite.storage.log.log_reader import read
from tests.handlers.denying import Denying
from tests.handlers.grouping import find
from tests.handlers.transacting import add, end, hold_markers, host, init, stored

NAME = "transaction.version"
SOFTWARE = {"client_software_name": "a-test", "client_software_version": "1"}
UPGRADE, SAFE, UNSAFE = 1, 2, 3
REFUSED = "The update failed for all features since the following feature had an error: "


def features(broker, version=4):
    """Return (supported, finalized) of the feature, as in ApiVersions."""
    answer = broker.request(API_VERSIONS, version, **SOFTWARE)
    supported = [(each.name, each.min_version, each.max_version)
                 for each in answer.supported_features if each.name == NAME]  # fmt: skip
    finalized = [(each.name, each.max_version_level, each.min_version_level)
                 for each in answer.finalized_features if each.name == NAME]  # fmt: skip
    return supported, finalized


def epoch(broker):
    return broker.request(API_VERSIONS, 3, **SOFTWARE).finalized_features_epoch


def update(broker, level, upgrade_type=UPGRADE, version=2, name=NAME, **request):
    entry = {"feature": name, "max_version_level": level}
    entry |= {"upgrade_type": upgrade_type} if version else {"allow_downgrade": upgrade_type > 1}
    return broker.request(UPDATE_FEATURES, version, feature_updates=[entry], **request)


def last_record(broker):
    """Return the last record of the transaction coordinator."""
    log = host(broker).partition.log
    batch = next(batches(read(log, log.end_offset - 1, 1 << 20, log.end_offset).read()))
    record = batch.records()[-1]
    return transaction_records.read(record.key, record.value)


@pytest.mark.parametrize("version", [4, 5])
def test_new_cluster_finalizes_the_highest_level(transactional, version):
    assert features(transactional, version) == ([(NAME, 0, 2)], [(NAME, 2, 2)])


def test_version_3_has_no_supported_feature_with_minimum_0(transactional):
    assert features(transactional, 3) == ([], [(NAME, 2, 2)])


def test_epoch_is_the_offset_of_the_image_and_grows(transactional):
    first = epoch(transactional)
    assert first == transactional.node.controller.offset > 0
    transactional.create("t")
    second = epoch(transactional)
    assert second > first
    transactional.restart()
    assert epoch(transactional) >= second


@pytest.mark.parametrize("version", [0, 1, 2])
def test_levels_are_lowered_and_raised(transactional, version):
    for level, upgrade_type in ((1, SAFE), (2, UPGRADE), (0, SAFE), (1, UPGRADE)):
        before = epoch(transactional)
        answer = update(transactional, level, upgrade_type, version)
        assert (answer.error_code, answer.error_message) == (0, None)
        if version < 2:
            (result,) = answer.results
            assert (result.feature, result.error_code) == (NAME, 0)
        # Level 0 is not listed.
        assert features(transactional)[1] == ([(NAME, level, level)] if level else [])
        assert epoch(transactional) > before
    transactional.restart()
    assert features(transactional)[1] == [(NAME, 1, 1)]


@pytest.mark.parametrize("version", [1, 2])
def test_validation_changes_nothing(transactional, version):
    assert update(transactional, 1, SAFE, version, validate_only=True).error_code == 0
    refused = update(transactional, 1, UPGRADE, version, validate_only=True)
    assert refused.error_code == errors.InvalidUpdateVersion.code
    assert features(transactional)[1] == [(NAME, 2, 2)]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_refused_update_has_one_error_for_the_request(transactional, version):
    answer = update(transactional, 3, UPGRADE, version)
    assert answer.error_code == errors.InvalidUpdateVersion.code
    assert answer.error_message == (
        f"{REFUSED}Invalid update version 3 for feature {NAME}. Local controller 0 only supports"
        " versions 0-2"
    )
    assert version == 2 or answer.results == []


def test_downgrade_as_an_upgrade_is_refused(transactional):
    for version in (0, 2):
        answer = update(transactional, 1, UPGRADE, version)
        assert answer.error_code == errors.InvalidUpdateVersion.code
        assert "safe or unsafe downgrade" in answer.error_message


def test_unknown_feature_is_refused(lasting):
    answer = update(lasting, 1, name="no.such")
    assert answer.error_code == errors.InvalidUpdateVersion.code
    assert answer.error_message.endswith("Local controller 0 does not support this feature.")


def test_update_requires_alter_on_the_cluster(transactional):
    transactional.node.authorizer = Denying(ALTER)
    answer = update(transactional, 1, SAFE)
    assert answer.error_code == errors.ClusterAuthorizationFailed.code
    assert features(transactional)[1] == [(NAME, 2, 2)]


def test_records_and_fencing_aborts_follow_the_level(transactional):
    find(transactional, key_type=1)
    transactional.create("t")
    hold_markers(transactional)
    for level, upgrade_type, version in ((2, SAFE, 1), (1, SAFE, 1), (0, SAFE, 0), (2, UPGRADE, 1)):
        assert update(transactional, level, upgrade_type).error_code == 0
        assert host(transactional).machine.limits.transaction_version == level
        name = f"id-{level}-{upgrade_type}"
        _, *pair = init(transactional, name=name)
        assert add(transactional, 3, pair, ("t", 0), name=name) == {("t", 0): 0}
        assert last_record(transactional).version == version
        assert init(transactional, name=name)[0] == errors.ConcurrentTransactions.code
        aborted = stored(transactional, name)
        assert (aborted.transaction_version, aborted.producer_epoch) == (level, 1)


def test_running_transaction_of_version_2_ends_after_a_downgrade(transactional):
    find(transactional, key_type=1)
    transactional.create("t")
    hold_markers(transactional)
    _, *pair = init(transactional)
    add(transactional, 5, pair, ("t", 0))
    assert update(transactional, 0, SAFE).error_code == 0
    assert end(transactional, 5, pair) == (0, pair[0], 1)
    assert stored(transactional).transaction_version == 2
