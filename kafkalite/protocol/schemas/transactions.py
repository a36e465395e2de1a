"""Transaction APIs: producer ids and epochs, partitions of a transaction, and its end."""

from kafkalite.protocol.schema import Api
from kafkalite.protocol.types import Array, Bool, Int8, Int16, Int32, Int64, String, Struct, Uuid

ADD_PARTITIONS_TO_TXN_TOPIC = Struct(name=String(), partitions=Array(Int32()))

ADD_PARTITIONS_TO_TXN_TOPIC_RESULT = Struct(
    name=String(),
    results_by_partition=Array(Struct(partition_index=Int32(), partition_error_code=Int16())),
)

INIT_PRODUCER_ID = Api(
    22, "InitProducerId", versions="0-6", flexible="2+",
    request=Struct(
        transactional_id=String(nullable="0+"),
        transaction_timeout_ms=Int32(),
        producer_id=Int64("3+", default=-1, ignorable=False),
        producer_epoch=Int16("3+", default=-1, ignorable=False),
        enable_2pc=Bool("6+", ignorable=False),
        keep_prepared_txn=Bool("6+", ignorable=False),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        error_code=Int16(),
        producer_id=Int64(default=-1),
        producer_epoch=Int16(),
        ongoing_txn_producer_id=Int64("6+", default=-1),
        ongoing_txn_producer_epoch=Int16("6+", default=-1),
    ),
)

ADD_PARTITIONS_TO_TXN = Api(
    24, "AddPartitionsToTxn", versions="0-5", flexible="3+",
    request=Struct(
        transactions=Array(Struct(
            transactional_id=String(),
            producer_id=Int64(),
            producer_epoch=Int16(),
            verify_only=Bool(),
            topics=Array(ADD_PARTITIONS_TO_TXN_TOPIC),
        ), "4+", ignorable=False),
        v3_and_below_transactional_id=String("0-3", ignorable=False),
        v3_and_below_producer_id=Int64("0-3", ignorable=False),
        v3_and_below_producer_epoch=Int16("0-3", ignorable=False),
        v3_and_below_topics=Array(ADD_PARTITIONS_TO_TXN_TOPIC, "0-3", ignorable=False),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        error_code=Int16("4+"),
        results_by_transaction=Array(Struct(
            transactional_id=String(),
            topic_results=Array(ADD_PARTITIONS_TO_TXN_TOPIC_RESULT),
        ), "4+"),
        results_by_topic_v3_and_below=Array(ADD_PARTITIONS_TO_TXN_TOPIC_RESULT, "0-3"),
    ),
)

ADD_OFFSETS_TO_TXN = Api(
    25, "AddOffsetsToTxn", versions="0-4", flexible="3+",
    request=Struct(
        transactional_id=String(),
        producer_id=Int64(),
        producer_epoch=Int16(),
        group_id=String(),
    ),
    response=Struct(throttle_time_ms=Int32(), error_code=Int16()),
)

END_TXN = Api(
    26, "EndTxn", versions="0-5", flexible="3+",
    request=Struct(
        transactional_id=String(),
        producer_id=Int64(),
        producer_epoch=Int16(),
        committed=Bool(),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        error_code=Int16(),
        producer_id=Int64("5+", default=-1),
        producer_epoch=Int16("5+", default=-1),
    ),
)

WRITE_TXN_MARKERS = Api(
    27, "WriteTxnMarkers", versions="1-2", flexible="1+",
    request=Struct(
        markers=Array(Struct(
            producer_id=Int64(),
            producer_epoch=Int16(),
            transaction_result=Bool(),
            topics=Array(Struct(name=String(), partition_indexes=Array(Int32()))),
            coordinator_epoch=Int32(),
            transaction_version=Int8("2+"),
        )),
    ),
    response=Struct(
        markers=Array(Struct(
            producer_id=Int64(),
            topics=Array(Struct(
                name=String(),
                partitions=Array(Struct(partition_index=Int32(), error_code=Int16())),
            )),
        )),
    ),
)

TXN_OFFSET_COMMIT = Api(
    28, "TxnOffsetCommit", versions="0-6", flexible="3+",
    request=Struct(
        transactional_id=String(),
        group_id=String(),
        producer_id=Int64(),
        producer_epoch=Int16(),
        generation_id_or_member_epoch=Int32("3+", default=-1, ignorable=False),
        member_id=String("3+", ignorable=False),
        group_instance_id=String("3+", nullable="0+", default=None, ignorable=False),
        topics=Array(Struct(
            name=String("0-5"),
            topic_id=Uuid("6+"),
            partitions=Array(Struct(
                partition_index=Int32(),
                committed_offset=Int64(),
                committed_leader_epoch=Int32("2+", default=-1),
                committed_metadata=String(nullable="0+"),
            )),
        )),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        topics=Array(Struct(
            name=String("0-5"),
            topic_id=Uuid("6+"),
            partitions=Array(Struct(partition_index=Int32(), error_code=Int16())),
        )),
    ),
)

DESCRIBE_PRODUCERS = Api(
    61, "DescribeProducers", versions="0", flexible="0+",
    request=Struct(topics=Array(Struct(name=String(), partition_indexes=Array(Int32())))),
    response=Struct(
        throttle_time_ms=Int32(),
        topics=Array(Struct(
            name=String(),
            partitions=Array(Struct(
                partition_index=Int32(),
                error_code=Int16(),
                error_message=String(nullable="0+", default=None),
                active_producers=Array(Struct(
                    producer_id=Int64(),
                    producer_epoch=Int32(),
                    last_sequence=Int32(default=-1),
                    last_timestamp=Int64(default=-1),
                    coordinator_epoch=Int32(),
                    current_txn_start_offset=Int64(default=-1),
                )),
            )),
        )),
    ),
)

DESCRIBE_TRANSACTIONS = Api(
    65, "DescribeTransactions", versions="0", flexible="0+",
    request=Struct(transactional_ids=Array(String())),
    response=Struct(
        throttle_time_ms=Int32(),
        transaction_states=Array(Struct(
            error_code=Int16(),
            transactional_id=String(),
            transaction_state=String(),
            transaction_timeout_ms=Int32(),
            transaction_start_time_ms=Int64(),
            producer_id=Int64(),
            producer_epoch=Int16(),
            topics=Array(Struct(topic=String(), partitions=Array(Int32()))),
        )),
    ),
)

LIST_TRANSACTIONS = Api(
    66, "ListTransactions", versions="0-2", flexible="0+",
    request=Struct(
        state_filters=Array(String()),
        producer_id_filters=Array(Int64()),
        duration_filter=Int64("1+", default=-1, ignorable=False),
        transactional_id_pattern=String("2+", nullable="0+", default=None, ignorable=False),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        error_code=Int16(),
        unknown_state_filters=Array(String()),
        transaction_states=Array(Struct(
            transactional_id=String(),
            producer_id=Int64(),
            transaction_state=String(),
        )),
    ),
)
