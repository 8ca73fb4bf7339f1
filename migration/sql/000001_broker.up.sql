-- The broker's tables. What runs on MySQL 8.0+/9.x and MariaDB 10.6+ alike: no functional or
-- invisible indexes, no foreign keys on hot tables, every time DATETIME(6) in UTC.
-- Ids that clients choose are VARCHAR(255) compared by their bytes; ids made here are 12-byte xids
-- for what is many (message, job) and small integers for what is few and referred to often.

CREATE TABLE producer (
    id         INT UNSIGNED  NOT NULL AUTO_INCREMENT PRIMARY KEY,
    producerId VARCHAR(255)  NOT NULL,
    name       VARCHAR(255)  NOT NULL,
    tokenHash  VARBINARY(48) NOT NULL COMMENT '16 bytes of salt, then SHA-256 of salt and token',
    changedAt  DATETIME(6)   NOT NULL COMMENT 'whole seconds, rising with every change: it is the Last-Modified of conditional updates',
    createdAt  DATETIME(6)   NOT NULL,
    UNIQUE KEY producerId (producerId)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE channel (
    id        INT UNSIGNED  NOT NULL AUTO_INCREMENT PRIMARY KEY,
    channelId VARCHAR(255)  NOT NULL,
    name      VARCHAR(255)  NOT NULL,
    tokenHash VARBINARY(48) NOT NULL COMMENT 'as of producer',
    changedAt DATETIME(6)   NOT NULL COMMENT 'as of producer',
    createdAt DATETIME(6)   NOT NULL,
    UNIQUE KEY channelId (channelId)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE consumer (
    id          INT UNSIGNED    NOT NULL AUTO_INCREMENT PRIMARY KEY,
    channelId   INT UNSIGNED    NOT NULL COMMENT 'channel.id',
    consumerId  VARCHAR(255)    NOT NULL,
    name        VARCHAR(255)    NOT NULL,
    type        VARCHAR(8)      NOT NULL COMMENT 'push or pull',
    callbackUrl VARCHAR(2048)   NOT NULL,
    tokenSealed VARBINARY(2048) NOT NULL COMMENT 'sent out with every push, so sealed (AES-256-GCM), not hashed',
    changedAt   DATETIME(6)     NOT NULL COMMENT 'as of producer',
    createdAt   DATETIME(6)     NOT NULL,
    UNIQUE KEY consumerId (channelId, consumerId)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- A consumer that was deleted while its jobs were still there. They are removed in bounded batches,
-- by whichever instance gets to it; the row goes with the last of them.
CREATE TABLE consumer_removal (
    consumerId INT UNSIGNED NOT NULL PRIMARY KEY COMMENT 'consumer.id as it was',
    deletedAt  DATETIME(6)  NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- One row. Its version rises in the transaction of every change of a producer, channel or consumer, so
-- one read by primary key tells an instance whether what it remembers of them is still true.
CREATE TABLE catalog (
    id      TINYINT UNSIGNED NOT NULL PRIMARY KEY,
    version BIGINT UNSIGNED  NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
INSERT INTO catalog (id, version) VALUES (1, 1);

-- The key that seals consumer tokens where the deployment hands in none of its own.
CREATE TABLE seal_key (
    id        TINYINT UNSIGNED NOT NULL PRIMARY KEY,
    secret    BINARY(32)       NOT NULL,
    createdAt DATETIME(6)      NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE message (
    id           BINARY(12)   NOT NULL PRIMARY KEY,
    channelId    INT UNSIGNED NOT NULL COMMENT 'channel.id',
    producerId   INT UNSIGNED NOT NULL COMMENT 'producer.id',
    messageId    VARCHAR(255) NOT NULL,
    contentType  VARCHAR(255) NOT NULL,
    priority     INT UNSIGNED NOT NULL,
    receivedAt   DATETIME(6)  NOT NULL,
    dispatchedAt DATETIME(6)  NULL COMMENT 'when its jobs were made: at once, or when its schedule came; until then NULL',
    UNIQUE KEY messageId (channelId, messageId),
    KEY newest (channelId, id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Apart from message, so that claims and lists never read through payloads.
CREATE TABLE message_payload (
    messageId BINARY(12) NOT NULL PRIMARY KEY COMMENT 'message.id',
    headers   MEDIUMBLOB NOT NULL COMMENT 'JSON object of the metadata headers to pass on',
    body      LONGBLOB   NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Only scheduled messages have a row here.
CREATE TABLE schedule (
    messageId    BINARY(12)   NOT NULL PRIMARY KEY COMMENT 'message.id',
    channelId    INT UNSIGNED NOT NULL COMMENT 'channel.id',
    scheduledFor DATETIME(6)  NOT NULL,
    dispatchedAt DATETIME(6)  NULL,
    KEY due (dispatchedAt, scheduledFor),
    KEY newest (channelId, messageId),
    KEY status (channelId, dispatchedAt, scheduledFor)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The hot table. `dueAt` says when the row next wants attention: QUEUED: not before then (NULL: at once);
-- INFLIGHT: the lease's end; otherwise NULL. So the key `claim` serves claims of ready jobs in the order of
-- priority, claims of due retries in the order of time, and the search for leases that ran out.
-- dlqDelta is what the row still owes to dlq_summary.dead_count: see docs/architecture.md, Counting.
CREATE TABLE job (
    id                 BINARY(12)        NOT NULL PRIMARY KEY,
    messageId          BINARY(12)        NOT NULL COMMENT 'message.id',
    consumerId         INT UNSIGNED      NOT NULL COMMENT 'consumer.id',
    status             SMALLINT UNSIGNED NOT NULL COMMENT '1001 QUEUED, 1002 INFLIGHT, 1003 DELIVERED, 1004 DEAD, 1005 SHELVED',
    statusChangedAt    DATETIME(6)       NOT NULL,
    dueAt              DATETIME(6)       NULL,
    precedence         INT               NOT NULL COMMENT 'minus the priority: the lowest goes first',
    retryAttemptCount  SMALLINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'retries after the first attempt',
    noRetry            TINYINT           NOT NULL DEFAULT 0 COMMENT '1: its consumer declared it dead, its retries count as exhausted',
    incrementalTimeout INT UNSIGNED      NOT NULL DEFAULT 0 COMMENT 'seconds that a pull consumer asked for on top',
    leaseOwner         BINARY(12)        NULL COMMENT 'the instance that has it in flight; NULL for a pull consumer',
    leaseToken         BIGINT UNSIGNED   NOT NULL DEFAULT 0 COMMENT 'fences the attempt: another claim is another token',
    lastErrorClass     VARCHAR(32)       CHARACTER SET ascii COLLATE ascii_bin NULL,
    lastError          VARCHAR(512)      NULL,
    dlqCounted         TINYINT           NOT NULL DEFAULT 0 COMMENT '1: it is in dlq_summary.dead_count',
    dlqDelta           TINYINT AS (CASE WHEN status = 1004 AND dlqCounted = 0 THEN 1
                                        WHEN status <> 1004 AND dlqCounted = 1 THEN -1 END) STORED,
    KEY claim (consumerId, status, dueAt, precedence, id),
    KEY changed (consumerId, status, statusChangedAt, id),
    KEY uncounted (dlqDelta, consumerId),
    KEY message (messageId)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Counters that /job-status and /messages-status are read from. Each writer adds to a shard of its own in its
-- own transaction, so the sum is exact and no row is hot. kind: 1 jobs ever made less jobs removed, of a
-- consumer; 2 jobs delivered less those removed, of a consumer; 3 messages dispatched less those pruned, of a channel.
CREATE TABLE tally (
    kind  TINYINT UNSIGNED NOT NULL,
    refId INT UNSIGNED     NOT NULL,
    shard TINYINT UNSIGNED NOT NULL,
    n     BIGINT           NOT NULL,
    PRIMARY KEY (kind, refId, shard)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE dlq_summary (
    consumerId      INT UNSIGNED NOT NULL PRIMARY KEY COMMENT 'consumer.id',
    consumerName    VARCHAR(255) NOT NULL,
    channelId       VARCHAR(255) NOT NULL COMMENT 'channel.channelId',
    channelName     VARCHAR(255) NOT NULL,
    dead_count      BIGINT       NOT NULL DEFAULT 0,
    last_checked_at DATETIME(6)  NOT NULL COMMENT 'the last counting cycle that covered it; 1970-01-01 before the first',
    CONSTRAINT dlqSummaryConsumerRef FOREIGN KEY (consumerId)
        REFERENCES consumer (id) ON UPDATE CASCADE ON DELETE CASCADE
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Who may do a thing that one instance at a time should do. A row stays after its release: token rises with
-- every new holder (a fencing token).
CREATE TABLE `lock` (
    lockId     VARCHAR(255)    NOT NULL PRIMARY KEY,
    owner      VARCHAR(64)     NOT NULL COMMENT 'empty: free',
    token      BIGINT UNSIGNED NOT NULL,
    acquiredAt DATETIME(6)     NOT NULL,
    expiresAt  DATETIME(6)     NOT NULL COMMENT 'by the clock of the database; renewed while its holder lives'
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
