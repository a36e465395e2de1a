"""Configuration APIs: configs of topics, nodes, groups and clients; quotas; client telemetry."""

from kafkalite.protocol.result_array import ResultArray
from kafkalite.protocol.schema import Api
from kafkalite.protocol.types import (
    Array,
    Bool,
    Bytes,
    Float64,
    Int8,
    Int16,
    Int32,
    String,
    Struct,
    Uuid,
)

DESCRIBE_CONFIGS = Api(
    32, "DescribeConfigs", versions="1-4", flexible="4+",
    request=Struct(
        resources=Array(Struct(
            resource_type=Int8(),
            resource_name=String(),
            configuration_keys=Array(String(), nullable="0+"),
        )),
        include_synonyms=Bool(),
        include_documentation=Bool("3+", ignorable=False),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        results=Array(Struct(
            error_code=Int16(),
            error_message=String(nullable="0+"),
            resource_type=Int8(),
            resource_name=String(),
            configs=Array(Struct(
                name=String(),
                value=String(nullable="0+"),
                read_only=Bool(),
                config_source=Int8(default=-1),
                is_sensitive=Bool(),
                synonyms=Array(Struct(name=String(), value=String(nullable="0+"), source=Int8())),
                config_type=Int8("3+"),
                documentation=String("3+", nullable="0+"),
            )),
        )),
    ),
)

DESCRIBED_RESOURCES = ResultArray(DESCRIBE_CONFIGS, "results")

ALTER_CONFIGS = Api(
    33, "AlterConfigs", versions="0-2", flexible="2+",
    request=Struct(
        resources=Array(Struct(
            resource_type=Int8(),
            resource_name=String(),
            configs=Array(Struct(name=String(), value=String(nullable="0+"))),
        )),
        validate_only=Bool(),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        responses=Array(Struct(
            error_code=Int16(),
            error_message=String(nullable="0+"),
            resource_type=Int8(),
            resource_name=String(),
        )),
    ),
)

INCREMENTAL_ALTER_CONFIGS = Api(
    44, "IncrementalAlterConfigs", versions="0-1", flexible="1+",
    request=Struct(
        resources=Array(Struct(
            resource_type=Int8(),
            resource_name=String(),
            configs=Array(Struct(
                name=String(),
                config_operation=Int8(),
                value=String(nullable="0+"),
            )),
        )),
        validate_only=Bool(),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        responses=Array(Struct(
            error_code=Int16(),
            error_message=String(nullable="0+"),
            resource_type=Int8(),
            resource_name=String(),
        )),
    ),
)

LIST_CONFIG_RESOURCES = Api(
    74, "ListConfigResources", versions="0-1", flexible="0+",
    request=Struct(resource_types=Array(Int8(), "1+", ignorable=False)),
    response=Struct(
        throttle_time_ms=Int32(),
        error_code=Int16(),
        config_resources=Array(Struct(
            resource_name=String(),
            resource_type=Int8("1+", default=16),
        )),
    ),
)

DESCRIBE_CLIENT_QUOTAS = Api(
    48, "DescribeClientQuotas", versions="0-1", flexible="1+",
    request=Struct(
        components=Array(Struct(
            entity_type=String(),
            match_type=Int8(),
            match=String(nullable="0+"),
        )),
        strict=Bool(),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        error_code=Int16(),
        error_message=String(nullable="0+"),
        entries=Array(Struct(
            entity=Array(Struct(entity_type=String(), entity_name=String(nullable="0+"))),
            values=Array(Struct(key=String(), value=Float64())),
        ), nullable="0+"),
    ),
)

ALTER_CLIENT_QUOTAS = Api(
    49, "AlterClientQuotas", versions="0-1", flexible="1+",
    request=Struct(
        entries=Array(Struct(
            entity=Array(Struct(entity_type=String(), entity_name=String(nullable="0+"))),
            ops=Array(Struct(key=String(), value=Float64(), remove=Bool())),
        )),
        validate_only=Bool(),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        entries=Array(Struct(
            error_code=Int16(),
            error_message=String(nullable="0+"),
            entity=Array(Struct(entity_type=String(), entity_name=String(nullable="0+"))),
        )),
    ),
)

GET_TELEMETRY_SUBSCRIPTIONS = Api(
    71, "GetTelemetrySubscriptions", versions="0", flexible="0+",
    request=Struct(client_instance_id=Uuid()),
    response=Struct(
        throttle_time_ms=Int32(),
        error_code=Int16(),
        client_instance_id=Uuid(),
        subscription_id=Int32(),
        accepted_compression_types=Array(Int8()),
        push_interval_ms=Int32(),
        telemetry_max_bytes=Int32(),
        delta_temporality=Bool(),
        requested_metrics=Array(String()),
    ),
)

PUSH_TELEMETRY = Api(
    72, "PushTelemetry", versions="0", flexible="0+",
    request=Struct(
        client_instance_id=Uuid(),
        subscription_id=Int32(),
        terminating=Bool(),
        compression_type=Int8(),
        metrics=Bytes(),
    ),
    response=Struct(throttle_time_ms=Int32(), error_code=Int16()),
)
