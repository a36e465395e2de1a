"""Security APIs: SASL, ACLs, SCRAM credentials and delegation tokens."""

from kafkalite.protocol.schema import Api
from kafkalite.protocol.types import Array, Bytes, Int8, Int16, Int32, Int64, String, Struct

SASL_HANDSHAKE = Api(
    17, "SaslHandshake", versions="0-1",
    request=Struct(mechanism=String()),
    response=Struct(error_code=Int16(), mechanisms=Array(String())),
)

SASL_AUTHENTICATE = Api(
    36, "SaslAuthenticate", versions="0-2", flexible="2+",
    request=Struct(auth_bytes=Bytes()),
    response=Struct(
        error_code=Int16(),
        error_message=String(nullable="0+"),
        auth_bytes=Bytes(),
        session_lifetime_ms=Int64("1+"),
    ),
)

DESCRIBE_ACLS = Api(
    29, "DescribeAcls", versions="1-3", flexible="2+",
    request=Struct(
        resource_type_filter=Int8(),
        resource_name_filter=String(nullable="0+"),
        pattern_type_filter=Int8(default=3),
        principal_filter=String(nullable="0+"),
        host_filter=String(nullable="0+"),
        operation=Int8(),
        permission_type=Int8(),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        error_code=Int16(),
        error_message=String(nullable="0+"),
        resources=Array(Struct(
            resource_type=Int8(),
            resource_name=String(),
            pattern_type=Int8(default=3),
            acls=Array(Struct(
                principal=String(),
                host=String(),
                operation=Int8(),
                permission_type=Int8(),
            )),
        )),
    ),
)

CREATE_ACLS = Api(
    30, "CreateAcls", versions="1-3", flexible="2+",
    request=Struct(
        creations=Array(Struct(
            resource_type=Int8(),
            resource_name=String(),
            resource_pattern_type=Int8(default=3),
            principal=String(),
            host=String(),
            operation=Int8(),
            permission_type=Int8(),
        )),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        results=Array(Struct(error_code=Int16(), error_message=String(nullable="0+"))),
    ),
)

DELETE_ACLS = Api(
    31, "DeleteAcls", versions="1-3", flexible="2+",
    request=Struct(
        filters=Array(Struct(
            resource_type_filter=Int8(),
            resource_name_filter=String(nullable="0+"),
            pattern_type_filter=Int8(default=3),
            principal_filter=String(nullable="0+"),
            host_filter=String(nullable="0+"),
            operation=Int8(),
            permission_type=Int8(),
        )),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        filter_results=Array(Struct(
            error_code=Int16(),
            error_message=String(nullable="0+"),
            matching_acls=Array(Struct(
                error_code=Int16(),
                error_message=String(nullable="0+"),
                resource_type=Int8(),
                resource_name=String(),
                pattern_type=Int8(default=3),
                principal=String(),
                host=String(),
                operation=Int8(),
                permission_type=Int8(),
            )),
        )),
    ),
)

DESCRIBE_USER_SCRAM_CREDENTIALS = Api(
    50, "DescribeUserScramCredentials", versions="0", flexible="0+",
    request=Struct(users=Array(Struct(name=String()), nullable="0+")),
    response=Struct(
        throttle_time_ms=Int32(),
        error_code=Int16(),
        error_message=String(nullable="0+"),
        results=Array(Struct(
            user=String(),
            error_code=Int16(),
            error_message=String(nullable="0+"),
            credential_infos=Array(Struct(mechanism=Int8(), iterations=Int32())),
        )),
    ),
)

ALTER_USER_SCRAM_CREDENTIALS = Api(
    51, "AlterUserScramCredentials", versions="0", flexible="0+",
    request=Struct(
        deletions=Array(Struct(name=String(), mechanism=Int8())),
        upsertions=Array(Struct(
            name=String(),
            mechanism=Int8(),
            iterations=Int32(),
            salt=Bytes(),
            salted_password=Bytes(),
        )),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        results=Array(Struct(
            user=String(),
            error_code=Int16(),
            error_message=String(nullable="0+"),
        )),
    ),
)

CREATE_DELEGATION_TOKEN = Api(
    38, "CreateDelegationToken", versions="1-3", flexible="2+",
    request=Struct(
        owner_principal_type=String("3+", nullable="0+", ignorable=False),
        owner_principal_name=String("3+", nullable="0+", ignorable=False),
        renewers=Array(Struct(principal_type=String(), principal_name=String())),
        max_lifetime_ms=Int64(),
    ),
    response=Struct(
        error_code=Int16(),
        principal_type=String(),
        principal_name=String(),
        token_requester_principal_type=String("3+"),
        token_requester_principal_name=String("3+"),
        issue_timestamp_ms=Int64(),
        expiry_timestamp_ms=Int64(),
        max_timestamp_ms=Int64(),
        token_id=String(),
        hmac=Bytes(),
        throttle_time_ms=Int32(),
    ),
)

RENEW_DELEGATION_TOKEN = Api(
    39, "RenewDelegationToken", versions="1-2", flexible="2+",
    request=Struct(hmac=Bytes(), renew_period_ms=Int64()),
    response=Struct(error_code=Int16(), expiry_timestamp_ms=Int64(), throttle_time_ms=Int32()),
)

EXPIRE_DELEGATION_TOKEN = Api(
    40, "ExpireDelegationToken", versions="1-2", flexible="2+",
    request=Struct(hmac=Bytes(), expiry_time_period_ms=Int64()),
    response=Struct(error_code=Int16(), expiry_timestamp_ms=Int64(), throttle_time_ms=Int32()),
)

DESCRIBE_DELEGATION_TOKEN = Api(
    41, "DescribeDelegationToken", versions="1-3", flexible="2+",
    request=Struct(
        owners=Array(Struct(principal_type=String(), principal_name=String()), nullable="0+"),
    ),
    response=Struct(
        error_code=Int16(),
        tokens=Array(Struct(
            principal_type=String(),
            principal_name=String(),
            token_requester_principal_type=String("3+"),
            token_requester_principal_name=String("3+"),
            issue_timestamp=Int64(),
            expiry_timestamp=Int64(),
            max_timestamp=Int64(),
            token_id=String(),
            hmac=Bytes(),
            renewers=Array(Struct(principal_type=String(), principal_name=String())),
        )),
        throttle_time_ms=Int32(),
    ),
)
