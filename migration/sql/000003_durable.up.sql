-- Durable orchestrations (package engine/durable). An instance is one execution of an orchestration; its row is locked
-- before anything of it is changed. Events are JSON, as the runtime serializes them.

-- dueAt says when the row next wants attention: leased: the lease's end; otherwise when its earliest event may be seen,
-- NULL without any. activeId makes an instance id unique among those that have not ended, and only among them.
CREATE TABLE workflow_instance (
    id           BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    instanceId   VARCHAR(255)    NOT NULL COMMENT 'the name that its starter chose',
    executionId  VARCHAR(64)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'tells executions under one name apart',
    state        VARCHAR(16)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'active; finished; continued: ended, and went on as another execution',
    activeId     VARCHAR(255)    AS (CASE WHEN state = 'active' THEN instanceId END) STORED,
    queue        VARCHAR(64)     NOT NULL,
    parent       MEDIUMBLOB      NULL COMMENT 'JSON: the instance that started it',
    metadata     MEDIUMBLOB      NULL COMMENT 'JSON: trace context and the like',
    lastSequence BIGINT          NOT NULL DEFAULT 0 COMMENT 'the newest workflow_history.sequence',
    dueAt        DATETIME(6)     NULL,
    leaseToken   BINARY(12)      NULL COMMENT 'fences a slice of its execution: another claim is another token',
    createdAt    DATETIME(6)     NOT NULL,
    completedAt  DATETIME(6)     NULL,
    UNIQUE KEY active (activeId),
    UNIQUE KEY execution (instanceId, executionId),
    KEY due (queue, dueAt),
    KEY completed (completedAt)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Events that an instance has still to take in: its start, results, signals, timers.
CREATE TABLE workflow_event (
    id        BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    instance  BIGINT UNSIGNED NOT NULL COMMENT 'workflow_instance.id',
    visibleAt DATETIME(6)     NOT NULL COMMENT 'of a timer: when it fires; otherwise when it came',
    timer     BIGINT          NULL COMMENT 'of a timer: the number by which it is cancelled',
    event     MEDIUMBLOB      NOT NULL,
    KEY visible (instance, visibleAt)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- What an instance took in and decided. Replaying it brings its code back to where it was.
CREATE TABLE workflow_history (
    instance BIGINT UNSIGNED NOT NULL COMMENT 'workflow_instance.id',
    sequence BIGINT          NOT NULL,
    event    MEDIUMBLOB      NOT NULL,
    PRIMARY KEY (instance, sequence)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Activities that were scheduled and have not ended.
CREATE TABLE workflow_activity (
    id         BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    instance   BIGINT UNSIGNED NOT NULL COMMENT 'workflow_instance.id',
    queue      VARCHAR(64)     NOT NULL,
    dueAt      DATETIME(6)     NOT NULL COMMENT 'leased: the lease''s end; otherwise since when it waits',
    leaseToken BINARY(12)      NULL COMMENT 'as of workflow_instance',
    event      MEDIUMBLOB      NOT NULL,
    KEY due (queue, dueAt),
    KEY instance (instance)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
