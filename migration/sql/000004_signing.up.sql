-- The secrets by which deliveries to consumers, and broadcasts of producers, are signed (Standard Webhooks).

-- Each subject has one current secret at most; former ones stay valid until they retire. isCurrent makes that a rule of the database.
CREATE TABLE signing_secret (
    id           BINARY(12)       NOT NULL PRIMARY KEY,
    kind         TINYINT UNSIGNED NOT NULL COMMENT '1 consumer, 2 producer',
    subjectId    INT UNSIGNED     NOT NULL COMMENT 'consumer.id or producer.id',
    secretSealed VARBINARY(255)   NOT NULL COMMENT 'its bytes, sealed as consumer.tokenSealed',
    createdAt    DATETIME(6)      NOT NULL,
    retiresAt    DATETIME(6)      NULL COMMENT 'not used from then on; NULL: the current one',
    isCurrent    TINYINT          AS (CASE WHEN retiresAt IS NULL THEN 1 END) STORED,
    rotationKey  VARCHAR(255)     NOT NULL COMMENT 'of the rotation that made it: the same key again makes no other',
    formerUntil  DATETIME(6)      NULL COMMENT 'when that rotation let the secrets before it retire; NULL: there were none',
    UNIQUE KEY current (kind, subjectId, isCurrent),
    UNIQUE KEY rotation (kind, subjectId, rotationKey),
    KEY retiring (retiresAt)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
