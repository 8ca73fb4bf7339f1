-- One dead-letter table and one history for every engine, the broker's own deliveries included. Columns are
-- named as in RFC-72; the last ones of engineDlq are ours.

ALTER TABLE job ADD COLUMN firstFailedAt DATETIME(6) NULL COMMENT 'the first attempt that failed since the job was made or requeued';

ALTER TABLE channel ADD COLUMN history TINYINT NOT NULL DEFAULT 0 COMMENT 'delivery attempts kept in engineHistory: 0 all, 1 failures, 2 none';

-- Of a delivery RowKey is {job}-{its statusChangedAt as it died}, which does not change while the job is DEAD: so the
-- record of a dead job is found by primary key. A SHELVED job belongs to the record whose ResolvedAtUtc is the job's
-- statusChangedAt.
CREATE TABLE engineDlq (
    PartitionKey      VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    RowKey            VARCHAR(300) NOT NULL,
    Engine            VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin GENERATED ALWAYS AS (PartitionKey) VIRTUAL,
    InstanceId        VARCHAR(255) NOT NULL,
    OriginalQueue     VARCHAR(255) NOT NULL,
    OriginalMessage   LONGTEXT     NULL COMMENT 'NULL for a delivery: it is read from the message',
    ErrorMessage      TEXT         NOT NULL,
    DequeueCount      INT UNSIGNED NOT NULL,
    FirstFailureAtUtc DATETIME(6)  NOT NULL,
    LastFailureAtUtc  DATETIME(6)  NOT NULL,
    Status            VARCHAR(8)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'Pending, Resolved, Expired',
    ResolutionNotes   VARCHAR(1024) NULL,
    ResolvedAtUtc     DATETIME(6)  NULL,
    ResolvedBy        VARCHAR(255) NULL,
    CorrelationId     VARCHAR(255) NOT NULL,
    JobId             BINARY(12)   NULL COMMENT 'job.id',
    QueueMessageId    CHAR(20)     CHARACTER SET ascii COLLATE ascii_bin NULL COMMENT 'of its retry',
    PRIMARY KEY (PartitionKey, RowKey),
    KEY latest (PartitionKey, Status, LastFailureAtUtc, RowKey),
    KEY instance (InstanceId, PartitionKey, Status, LastFailureAtUtc, RowKey),
    KEY ended (Status, ResolvedAtUtc)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Partitions of a day each are split off the last one ahead of time; a row always finds a partition.
CREATE TABLE engineHistory (
    PartitionKey  VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    RowKey        VARCHAR(300) NOT NULL COMMENT '{CorrelationId}-{CreatedAtUtc}-{what makes it unique}',
    Engine        VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin GENERATED ALWAYS AS (PartitionKey) VIRTUAL,
    InstanceId    VARCHAR(255) NOT NULL,
    Operation     VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    Status        VARCHAR(9)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'Succeeded, Failed',
    DurationMs    BIGINT       NOT NULL,
    Input         LONGTEXT     NULL,
    Output        LONGTEXT     NULL,
    Error         TEXT         NULL,
    CreatedAtUtc  DATETIME(6)  NOT NULL,
    CorrelationId VARCHAR(255) NOT NULL,
    PRIMARY KEY (PartitionKey, Status, Operation, CreatedAtUtc, RowKey),
    KEY instance (InstanceId, PartitionKey, Status, Operation, CreatedAtUtc, RowKey),
    KEY correlation (CorrelationId, CreatedAtUtc, RowKey, PartitionKey)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin
  PARTITION BY RANGE COLUMNS (CreatedAtUtc) (PARTITION pmax VALUES LESS THAN (MAXVALUE));

-- Jobs that are dead already get their record. An xid is written as the base32hex digits of its 12 bytes.
INSERT INTO engineDlq (PartitionKey, RowKey, InstanceId, OriginalQueue, ErrorMessage, DequeueCount,
    FirstFailureAtUtc, LastFailureAtUtc, Status, CorrelationId, JobId)
SELECT 'delivery',
    CONCAT(LOWER(CONCAT(LPAD(CONV(HEX(SUBSTRING(j.id, 1, 5)), 16, 32), 8, '0'),
                        LPAD(CONV(HEX(SUBSTRING(j.id, 6, 5)), 16, 32), 8, '0'),
                        LPAD(CONV(CONCAT(HEX(SUBSTRING(j.id, 11, 2)), '0'), 16, 32), 4, '0'))),
           '-', DATE_FORMAT(j.statusChangedAt, '%Y%m%dT%H%i%s.%fZ')),
    k.consumerId, ch.channelId, COALESCE(CONCAT(j.lastErrorClass, ': ', j.lastError), ''), j.retryAttemptCount + 1,
    j.statusChangedAt, j.statusChangedAt, 'Pending', COALESCE(m.messageId, ''), j.id
FROM job j LEFT JOIN message m ON m.id = j.messageId JOIN consumer k ON k.id = j.consumerId JOIN channel ch ON ch.id = k.channelId
WHERE j.status = 1004;
